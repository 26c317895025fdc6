"""Data of workloads: made once by their recipe, kept below the results folder, and the same for every attempt and run.

    results/data/<name>-<hash of the key>/{manifest.json, tree/}

Data are made in a hidden folder and renamed, so that they are there whole or not at all. Two runs that need the same
data share them; `rm -r results/data` makes them anew.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.beneath import Folder
from hugewise.errors import StorageError
from hugewise.files import made_folder, storing
from hugewise.host import scratch
from hugewise.model.scene import Data

__all__ = ["Kept", "find", "keep", "lay_out"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Data that were made: `digest` is the SHA-256 over names, modes and contents, `bytes` their size."""

    format: int = 1
    name: str
    key: Mapping[str, str | int | float | bool]
    bytes: int
    digest: str
    folder: str = ""

    @property
    def tree(self) -> Path:
        """The folder that is copied."""
        return Path(self.folder) / "tree"


def _folder(results: Path, data: Data) -> Path:
    exact = msgspec.json.encode([data.name, data.key], order="deterministic")
    name = _UNSAFE.sub("_", data.name)[:60]
    return results / "data" / f"{name}-{hashlib.sha256(exact).hexdigest()[:12]}"


def find(results: Path, data: Data) -> Kept | None:
    """The data as they were kept, or None where they must be made."""
    folder = _folder(results, data)
    try:
        kept = reading.stored(folder / "manifest.json", Kept)
    except reading.UnreadableError:
        return None
    return msgspec.structs.replace(kept, folder=str(folder.resolve()))


def keep(results: Path, data: Data, made: Path) -> Kept:
    """Keep the tree below `made`, which the recipe has filled. Raises StorageError."""
    folder = _folder(results, data)
    draft = folder.with_name(f".{folder.name}-{os.getpid()}")
    with storing(str(folder)):
        made_folder(draft.parent)
        with Folder.open(draft.parent.resolve()) as above:
            above.remove(draft.name)
            with above.make(draft.name, 0o755) as new:
                with new.make("tree", 0o755) as tree:
                    copied = scratch.copy(made, tree)
                kept = Kept(name=data.name, key=data.key, bytes=copied.bytes, digest=copied.digest)
                new.put("manifest.json", msgspec.json.format(msgspec.json.encode(kept), indent=1), 0o644)
            above.remove(folder.name)
            above.rename(draft.name, folder.name)
    return msgspec.structs.replace(kept, folder=str(folder.resolve()))


def lay_out(kept: Kept, place: scratch.Scratch) -> Path:
    """A fresh copy of the data for an attempt, its own when it is whole.

    Raises StorageError where the bytes are not those that were kept, UserError where there is no room.
    """
    return place.folder("data", lambda target: _fill(target, kept, place))


def _fill(target: Folder, kept: Kept, place: scratch.Scratch) -> None:
    scratch.need_room(target.path, kept.bytes)
    copied = scratch.copy(kept.tree, target, place.owner, place.group)
    if copied.digest != kept.digest:
        raise StorageError(
            f"{kept.folder} was changed since it was made (SHA-256 {copied.digest[:12]}, it was {kept.digest[:12]})",
            hint=f"make it anew: rm -r {kept.folder}",
        )
