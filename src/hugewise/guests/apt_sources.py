"""Which Debian archive this machine's apt uses, and the same one for another suite. Pure.

Both forms of sources.list(5) are read: one line for each source, and stanzas (deb822). An entry keeps all its options
(signed-by, trusted, check-valid-until ...) but those that say what to take from the archive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from hugewise.errors import UserError

__all__ = ["AptSource", "main_archive", "one_line", "stanza", "stanzas"]

# Suites of Debian itself. An archive for updates, security or backports has a suffix, and is not a whole archive.
_SUITES = frozenset(("bullseye", "bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing", "unstable"))
# Options of the one-line form that have another name in a stanza.
_NAMES = {"arch": "architectures", "lang": "languages", "target": "targets"}
# What is asked of the archive is said anew.
_REPLACED = frozenset(("types", "suites", "components", "architectures", "languages", "targets", "enabled", "uris"))
_LINE = re.compile(r"(?P<type>deb(?:-src)?)\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<rest>.+)")


class AptSource(msgspec.Struct, frozen=True):
    """An entry of apt's sources; `options` by their names in a stanza, in small letters."""

    types: tuple[str, ...]
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()


def one_line(text: str) -> Iterator[AptSource]:
    """The entries of a .list file; what is no entry is passed over, as apt has judged the file already."""
    for line in text.splitlines():
        found = _LINE.fullmatch(line.partition("#")[0].strip())
        if found is None:
            continue
        suite, *components = found["rest"].split()
        given = (each.partition("=") for each in (found["options"] or "").split())
        options = tuple((_NAMES.get(name.lower(), name.lower()), value.replace(",", " ")) for name, _, value in given)
        yield AptSource((found["type"],), (found["uri"],), (suite,), tuple(components), options)


def stanzas(text: str) -> Iterator[AptSource]:
    """The entries of a .sources file that are enabled."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    for block in re.split(r"\n\s*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line[:1] in (" ", "\t"):
                fields[name] = f"{fields.get(name, '')}\n{line}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "uris" not in fields or fields.get("enabled", "yes").lower() in ("no", "false", "0", "off", "disable"):
            continue
        options = tuple((key, value) for key, value in fields.items() if key not in ("types", "uris", "suites"))
        yield AptSource(
            tuple(fields.get("types", "deb").split()),
            tuple(fields["uris"].split()),
            tuple(fields.get("suites", "").split()),
            tuple(fields.get("components", "").split()),
            options,
        )


def main_archive(files: Mapping[str, str]) -> AptSource:
    """The entry of Debian's own archive among apt's sources files (path -> text), in the order of the files.

    That is one with a suite of Debian and the component main; of several, the first that Debian's keyring signs.
    Raises UserError.
    """
    entries = [entry for path, text in files.items() for entry in _entries(path, text)]
    fitting = [entry for entry in entries if _is_main(entry)]
    if not fitting:
        read = ", ".join(files) or "no sources file"
        raise UserError(
            f"apt's sources name no Debian archive (read: {read})",
            hint="add one, or set HUGEWISE_APT_SOURCES to a .sources or .list file that does",
        )
    return min(fitting, key=_trust)  # min keeps the first of equals


def _entries(path: str, text: str) -> Iterable[AptSource]:
    return stanzas(text) if path.endswith(".sources") else one_line(text)


def _is_main(entry: AptSource) -> bool:
    return (
        "deb" in entry.types
        and "main" in entry.components
        and any(suite.strip("/") in _SUITES for suite in entry.suites)
        and any(not uri.startswith("cdrom:") for uri in entry.uris)
    )


def _trust(entry: AptSource) -> int:
    """Other archives use Debian's names of suites too; their keys have other names."""
    signed = dict(entry.options).get("signed-by", "")
    return 0 if "debian-archive" in signed else 1 if not signed else 2


def stanza(source: AptSource, suite: str, arch: str, *, sources: bool) -> str:
    """The text of a .sources file: that archive's main component for `suite`, of programs for `arch` or of sources."""
    options = [f"{name.title()}: {value}" for name, value in source.options if name not in _REPLACED]
    asked = (
        f"Types: {'deb-src' if sources else 'deb'}",
        f"URIs: {' '.join(uri for uri in source.uris if not uri.startswith('cdrom:'))}",
        f"Suites: {suite}",
        "Components: main",
        f"Architectures: {arch}",
        # Without it, what other software has apt fetch beside (application metadata) is fetched too.
        f"Targets: {'Sources' if sources else 'Packages'}",
    )
    return "\n".join((*asked, *options)) + "\n"
