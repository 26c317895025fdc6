"""What two builds must have in common: the sections of their object files. Pure."""

from __future__ import annotations

import hashlib
import io
import tarfile

from hugewise.machine.elf import MAGIC, sections
from hugewise.reading import believing

__all__ = ["digests"]

_ARCHIVES = (b"!<arch>\n", b"!<thin>\n")


def digests(archive: bytes) -> dict[str, str]:
    """By its path in the tar file `archive`: a digest of each object file's sections, and of each library's bytes.

    Other files (sources, dependencies, text) are left out. Raises ValueError when it is no tar file.
    """
    found: dict[str, str] = {}
    try:
        with believing("the archive"), tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as members:
            for member in members:
                stream = members.extractfile(member) if member.isfile() else None
                data = b"" if stream is None else stream.read()
                if data.startswith(MAGIC):
                    told = [(one.name, one.kind, hashlib.sha256(one.contents).hexdigest()) for one in sections(data)]
                    found[member.name] = hashlib.sha256(repr(told).encode()).hexdigest()
                elif data.startswith(_ARCHIVES):
                    found[member.name] = hashlib.sha256(data).hexdigest()
    except tarfile.TarError as error:
        raise ValueError(f"not a tar file: {error}") from None
    return found
