"""Debian packages of any suite and architecture, had through this machine's own apt, unpacked and never installed.

apt runs in a workshop (`guests.sandbox`), as the unprivileged account where hugewise is root, with a state of its own:
an empty dpkg status, and one source, which is this machine's Debian archive with another suite. Proxies, mirrors,
credentials and keys are those of the machine, as far as that account may read them; its sources, lists and hooks are
neither changed nor run. The lists stay in the cache as they were read first, so that a study resolves to the same
versions again; remove `apt/` in the cache to have them read anew.

Which Debian archive this machine's apt uses, and the same one for another suite. Pure.

Both forms of sources.list(5) are read: one line for each source, and stanzas (deb822). An entry keeps all its options
(signed-by, trusted, check-valid-until ...) but those that say what to take from the archive.

How far a download or a file has come, while a program that says nothing of it is under way.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec

from hugewise import files
from hugewise.errors import HugewiseError, StorageError, UserError
from hugewise.guests import cache
from hugewise.guests.sandbox import Sandbox, workshop
from hugewise.model.guest import Architecture
from hugewise.model.workload import Missing
from hugewise.quantity import format_duration
from hugewise.unprivileged import NAME, Finished, Say

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


def sources_stanza(source: AptSource, suite: str, arch: str, *, sources: bool) -> str:
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


EVERY_S = 15.0


@contextmanager
def progress_reported(
    paths: Sequence[Path], total: int, say: Callable[[str], None], *, every: float = EVERY_S
) -> Iterator[None]:
    """Meanwhile say every so many seconds how many of `total` bytes have come of the files that appear at `paths`."""
    with watched("fetched", lambda: sum(map(_size, paths)), total, say, every=every):
        yield


@contextmanager
def watched(
    done: str, have: Callable[[], int], total: int, say: Callable[[str], None], *, every: float = EVERY_S
) -> Iterator[None]:
    """Meanwhile say every so many seconds how many bytes there are (`have`, called by another thread) of `total`, which
    may be an estimate. `done`: what was done with them, in a word.
    """
    over = threading.Event()

    def watch() -> None:
        seconds = every
        while not over.wait(every):
            here = have()
            most = max(here, total)
            share = f" ({here / most:.0%})" if total else ""
            say(f"{done} {here / 1e6:.1f} of {most / 1e6:.1f} MB{share} in {format_duration(seconds)}")
            seconds += every

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def written(path: Path) -> int:
    """Bytes that a file takes on the disk: none of its holes, and none where it is not there."""
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _size(path: Path) -> int:
    """Bytes of a file that is there; apt keeps what is not whole in a folder beside it."""
    for each in (path, path.parent / "partial" / path.name):
        try:
            return each.lstat().st_size
        except OSError:
            continue
    return 0


# What is run, and the packages that bring it.
_PROGRAMS: Final = {"apt-get": "apt", "dpkg-deb": "dpkg"}

# What Debian calls an architecture.
ARCHITECTURES: Final[Mapping[Architecture, str]] = {"x86-64": "amd64", "arm64": "arm64"}

_PATIENCE_S: Final = 1800
_KNOWN: Final = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_URI: Final = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})")
_UNKNOWN: Final = re.compile(
    r"E: (?:Unable to locate package|Unable to find a source package for|Package '?) ?(?P<name>[a-z0-9.+-]+)"
)
_KEYS: Final = ("NO_PUBKEY", "is not signed", "Missing key")

# apt's proxies.
_PASSED: Final = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")
# What the archive's lists leave beside them.
_NO_LISTS: Final = ("partial", "auxfiles", "lock")
_LISTS: Final = "lists"
_APT: Final = "apt"  # in the cache
# What apt wants to be there.
_FOLDERS: Final = ("lists/partial", "state", "cache/archives/partial")


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A package as the archive has it.

    arch   amd64, arm64 or all
    file   its name in the archive, such as redis-tools_5%3a8.0.2-3_arm64.deb
    size   bytes
    of     the suite and architecture that it was resolved for
    """

    name: str
    version: str
    arch: str
    sha256: str
    size: int
    file: str
    of: tuple[str, str]


class _State(msgspec.Struct, frozen=True):
    """The lists of a suite, and what they are for. `folder` is in the cache; None: they are still to be read."""

    suite: str
    arch: str
    sources: bool
    text: str
    folder: Path | None = None


class _Apt(msgspec.Struct, frozen=True):
    """apt in a workshop."""

    state: _State
    shop: Sandbox

    def run(self, program: str, *arguments: str) -> Finished:
        """Run it. Raises UserError when it is not there, HugewiseError when it does not end."""
        command = (_program(program, "apt"), "--config-file", str(self.shop.lent / "apt.conf"), *arguments)
        proxies = {name: os.environ[name] for name in _PASSED if name in os.environ}
        fixed = {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        return self.shop.run(command, timeout=_PATIENCE_S, environment={**proxies, **fixed})


def missing() -> tuple[Missing, ...]:
    """What this machine lacks to fetch Debian packages and to unpack them."""
    return tuple(
        Missing(f"guests of Debian packages need {name} on this machine", package)
        for name, package in _PROGRAMS.items()
        if shutil.which(name) is None
    )


def _program(name: str, package: str) -> str:
    if (found := shutil.which(name)) is None:
        raise UserError(f"guests of Debian packages need {name} on this machine", hint=f"apt install {package}")
    return found


def resolve(packages: Sequence[str], suite: str, arch: str, say: Say = lambda _: None) -> list[Package]:
    """Everything that `packages` need, themselves included, sorted by name: Depends and Pre-Depends, no Recommends.

    Nothing counts as installed, and Essential packages come only where something depends on them. `suite` is one of
    Debian's (trixie), `arch` Debian's word (amd64, arm64). Raises UserError.
    """
    _must_be_names(packages)
    said = _resolved(packages, _state(suite, arch, sources=False, say=say))
    found = parse_uris(said, (suite, arch))
    if not found and packages:
        raise UserError(f"apt resolved {', '.join(packages)} to nothing: {said.strip()[-500:]}")
    return sorted(found, key=lambda package: package.name)


def listed(packages: Sequence[str], suite: str, arch: str) -> str | None:
    """What apt says of `packages` and their needs, by lists in the cache; None: none are there. Raises UserError."""
    _must_be_names(packages)
    text = archive(suite, arch)
    state = _State(suite, arch, sources=False, text=text, folder=cache.entry(_APT, text.encode()))
    return _resolved(packages, state) if state.folder is not None and state.folder.exists() else None


def is_cached(package: Package) -> bool:
    """Whether its file is in the cache."""
    return _kept_at(package.sha256, package.file).exists()


def _must_be_names(packages: Sequence[str]) -> None:
    for name in packages:
        if _KNOWN.fullmatch(name) is None:
            raise UserError(f"{name!r} is no name of a Debian package", hint="names are of a-z, 0-9, '+', '-' and '.'")


def _resolved(packages: Sequence[str], state: _State) -> str:
    """What apt says of the packages and all that they need. Raises UserError."""
    with _apt(state) as apt:
        told = apt.run("apt-get", "install", "--yes", "--print-uris", "--", *packages)
        if told.status != 0:
            raise _refusal(apt, told.stderr)
    return told.stdout


def parse_uris(text: str, of: tuple[str, str]) -> list[Package]:
    """The packages in what `apt-get install --print-uris` says. Pure."""
    found = []
    for line in _URI.finditer(text):
        name, version, arch = unquote(line["file"]).removesuffix(".deb").split("_")
        found.append(
            Package(
                name=name,
                version=version,
                arch=arch,
                sha256=line["sha256"],
                size=int(line["size"]),
                file=line["file"],
                of=of,
            )
        )
    return found


def fetch(packages: Sequence[Package], say: Say = lambda _: None) -> list[Path]:
    """The .deb files of the packages in their order, from the cache where it has them.

    A file is in the cache only when its SHA-256 is that of the (signed) lists. Raises UserError, StorageError.
    """
    paths = [_kept_at(package.sha256, package.file) for package in packages]
    missing = [p for p, path in zip(packages, paths, strict=True) if not _whole(path, p.sha256, say)]
    for of in sorted({package.of for package in missing}):
        wanted = [package for package in missing if package.of == of]
        say(f"fetching {len(wanted)} packages of {of[0]} for {of[1]} ({sum(p.size for p in wanted) / 1e6:.1f} MB)")
        state = _state(*of, sources=False, say=say)
        names = [f"{package.name}:{of[1]}={package.version}" for package in wanted]
        files_of, size = [(p.file, p.sha256) for p in wanted], sum(p.size for p in wanted)
        _download(state, ("apt-get", "download", "--", *names), files_of, size, say)
    return paths


def source(package: str, suite: str, say: Say = lambda _: None) -> Path:
    """The upstream tarball (.orig.tar.*) of a source package, its SHA-256 checked. Raises UserError, StorageError."""
    if _KNOWN.fullmatch(package) is None:
        raise UserError(f"{package!r} is no name of a Debian source package")
    # Sources are of no architecture; apt wants one.
    state = _state(suite, "amd64", sources=True, say=say)
    command = ("apt-get", "source", "--tar-only", "--only-source", "--download-only")
    with _apt(state) as apt:
        told = apt.run(*command, "--print-uris", "--", package)
        if told.status != 0:
            raise _refusal(apt, told.stderr)
    found = [line for line in _URI.finditer(told.stdout) if ".orig.tar." in line["file"]]
    if len(found) != 1 or found[0]["file"].endswith(".asc"):
        names = ", ".join(line["file"] for line in _URI.finditer(told.stdout))
        raise UserError(f"the source package {package} of {suite} has no single .orig.tar: it has {names or 'nothing'}")
    file, sha256 = unquote(found[0]["file"]), found[0]["sha256"]
    path = _kept_at(sha256, file)
    if not _whole(path, sha256, say):
        say(f"fetching {file} ({int(found[0]['size']) / 1e6:.1f} MB)")
        _download(state, (*command, "--", package), [(file, sha256)], int(found[0]["size"]), say)
    return path


def _kept_at(sha256: str, file: str) -> Path:
    """Where a file of that SHA-256 is, or would be; it is used now."""
    path = cache.folder("packages") / sha256[:32] / file
    cache.used(path.parent)
    return path


def _whole(path: Path, sha256: str, say: Say) -> bool:
    """Whether the file is there with the bytes that it had."""
    if not path.exists():
        return False
    if cache.sha256(path) == sha256:
        return True
    say(f"{path} is damaged: it is fetched anew")
    return False


def _download(state: _State, command: Sequence[str], wanted: Sequence[tuple[str, str]], size: int, say: Say) -> None:
    """Let apt download, and take the files that have their SHA-256 into the cache: that of the copy that is taken."""
    with _apt(state) as apt:
        with progress_reported([apt.shop.own / file for file, _ in wanted], size, say):
            told = apt.run(*command)
        if told.status != 0:
            raise _refusal(apt, told.stderr)
        for file, sha256 in wanted:
            if not os.path.lexists(apt.shop.own / file):
                raise UserError(f"apt said that it has downloaded {file}, and it is not there", hint="try again")
            kept = _kept_at(sha256, file)
            kept.parent.mkdir(exist_ok=True)
            kept.parent.chmod(0o755)
            with cache.locked(kept.parent.with_name(f".{kept.parent.name}.lock")):
                cache.put(kept, partial(_take, apt.shop, file, sha256))


def _take(shop: Sandbox, file: str, sha256: str, place: Path) -> None:
    shop.take(file, place)
    found = cache.sha256(place)
    if found != sha256:
        raise UserError(f"{file} has the SHA-256 {found}, and the archive's lists say {sha256}")


def archive(suite: str, arch: str, *, sources: bool = False) -> str:
    """From where that suite is had: the text of the sources file that apt is given. Raises UserError."""
    return sources_stanza(main_archive(_sources_files()), suite, arch, sources=sources)


def _state(suite: str, arch: str, *, sources: bool, say: Say) -> _State:
    """The lists for that, read now where they are not in the cache. Raises UserError."""
    if re.fullmatch(r"[a-z][a-z0-9-]*", suite) is None:
        raise UserError(f"{suite!r} is no suite of Debian", hint="name one such as trixie")
    text = archive(suite, arch, sources=sources)
    state = _State(suite, arch, sources, text)

    def read(place: Path) -> None:
        say(f"reading the package lists of {suite} ({'sources' if sources else arch})")
        with _apt(state) as apt:
            told = apt.run("apt-get", "update", "--error-on=any")
            if told.status != 0:
                raise _unreadable(state, told.stderr)
            place.mkdir()
            apt.shop.take(_LISTS, place / _LISTS, without=_NO_LISTS)
        (place / "main.sources").write_text(text, encoding="utf-8")

    return msgspec.structs.replace(state, folder=cache.cached(_APT, text.encode(), read, say))


@contextmanager
def _apt(state: _State) -> Iterator[_Apt]:
    """apt with these lists, or to read them. Raises StorageError."""
    with workshop() as shop:
        lists = shop.own / _LISTS
        if state.folder is not None:
            for path in (state.folder / _LISTS).iterdir():
                shop.lend(path, f"{_LISTS}/{path.name}", kept=True)
            lists = shop.lent / _LISTS
        made = shop.run(("mkdir", "--parents", *_FOLDERS), timeout=_PATIENCE_S, environment={})
        if made.status != 0:
            raise StorageError(f"cannot make folders in {shop.own}: {made.why}", hint="free space there")
        shop.write("status", "")
        shop.write("main.sources", state.text)
        shop.write("apt.conf", configuration(shop, lists, state.arch))
        yield _Apt(state, shop)


def _sources_files() -> dict[str, str]:
    """apt's sources files, path -> text, in its order. Raises UserError where it is to be another account's."""
    if chosen := os.environ.get("HUGEWISE_APT_SOURCES"):
        paths = [Path(chosen)]
        if paths[0].is_file():
            files.own(paths[0], f"HUGEWISE_APT_SOURCES = {chosen!r}", "unset it, or name a file of root's")
    else:
        paths = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    found = {}
    for path in paths:
        if path.suffix in (".list", ".sources") and path.is_file():
            try:
                found[str(path)] = path.read_text(errors="replace")
            except PermissionError:
                continue  # not for this account; another one may do
    return found


def configuration(shop: Sandbox, lists: Path, arch: str) -> str:
    """apt.conf(5) of a private state, read after the machine's own, which it changes for itself. Pure.

    The machine's hooks are cleared: they are for what the machine installs, and some remove its downloads.
    """
    lines = (
        *(f"#clear {name};" for name in (
            "APT::Update::Pre-Invoke", "APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success",
            "DPkg::Pre-Invoke", "DPkg::Pre-Install-Pkgs", "DPkg::Post-Invoke",
            "APT::Architectures", "APT::Default-Release",
        )),
        f'APT::Architecture "{arch}";',
        f'APT::Architectures {{ "{arch}"; }};',
        'APT::Install-Recommends "false";',
        'APT::Install-Suggests "false";',
        f'Dir::State "{shop.own}/state/";',
        f'Dir::State::lists "{lists}/";',
        f'Dir::State::status "{shop.lent}/status";',
        f'Dir::Cache "{shop.own}/cache/";',
        f'Dir::Etc::sourcelist "{shop.lent}/main.sources";',
        *(f'Dir::Etc::{name} "/dev/null";' for name in ("sourceparts", "preferences", "preferencesparts")),
        f'Dir::Log "{shop.own}/";',
        'Acquire::ForceHash "SHA256";',
        'Acquire::Languages "none";',
    )  # fmt: skip
    return "\n".join(lines) + "\n"


def _refusal(apt: _Apt, stderr: str) -> HugewiseError:
    """Why apt did not do it: a name that the suite does not have, or its own words."""
    state = apt.state
    unknown = sorted({each["name"] for each in _UNKNOWN.finditer(stderr)})
    if unknown and state.sources:
        return UserError(
            f"Debian {state.suite} has no source package named {' and '.join(unknown)}",
            hint="a source package often has another name than its programs: apt-cache showsrc PROGRAM says it",
        )
    if unknown:
        listed = apt.run("apt-cache", "pkgnames").stdout.split()
        near = sorted({name for each in unknown for name in difflib.get_close_matches(each, listed, n=3)})
        hint = f"names near it: {', '.join(near)}" if near else "search names with: apt-cache search WORD"
        return UserError(
            f"Debian {state.suite} has no package for {state.arch} named {' and '.join(unknown)}", hint=hint
        )
    if os.strerror(errno.ENOSPC) in stderr or "enough free space" in stderr:
        return StorageError(f"apt: {_words(stderr)}", hint=f"free space at {apt.shop.own} (below /var/tmp)")
    return UserError(
        f"apt: {_words(stderr)}",
        hint=f"is the network there? where the archive has newer versions by now: rm -r {state.folder}",
    )


def _unreadable(state: _State, stderr: str) -> UserError:
    what = f"cannot read the package lists of Debian {state.suite}: {_words(stderr)}"
    if any(word in stderr for word in _KEYS):
        return UserError(
            what,
            hint="this machine's keyring lacks that suite's key: apt install --only-upgrade debian-archive-keyring",
        )
    readable = f", and can {NAME}, who runs apt for root, read what it needs of /etc/apt" if os.geteuid() == 0 else ""
    return UserError(what, hint=f"is the network there, does `apt-get update` work on this machine{readable}?")


def _words(stderr: str) -> str:
    """What apt complains of, first errors, then warnings; at most two lines."""
    lines = [line for mark in ("E: ", "W: ") for line in stderr.splitlines() if line.startswith(mark)]
    return "; ".join(line[3:] for line in lines[:2]) or stderr.strip()[-300:] or "it gave no reason"
