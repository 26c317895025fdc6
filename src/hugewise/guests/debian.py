"""Debian packages of any suite and architecture, had through this machine's own apt, unpacked and never installed.

apt runs with a state of its own in the cache: its lists, its archives, an empty dpkg status, and one source, which is
this machine's Debian archive with another suite. Proxies, mirrors, credentials and keys are those of the machine; its
sources, lists and hooks are neither changed nor run. The lists stay as they were read first, so that a study resolves
to the same versions again; remove `apt/` in the cache to have them read anew.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec

from hugewise.errors import StorageError, UserError
from hugewise.guests import apt_sources, cache
from hugewise.model.guest import Architecture
from hugewise.model.workload import Missing

__all__ = ["ARCHITECTURES", "Package", "Say", "configuration", "fetch", "missing", "resolve", "source", "unpack"]

# What is run, and the packages that bring it.
_PROGRAMS: Final = {"apt-get": "apt", "dpkg-deb": "dpkg", "tar": "tar"}

# What Debian calls an architecture.
ARCHITECTURES: Final[Mapping[Architecture, str]] = {"x86-64": "amd64", "arm64": "arm64"}

_PATIENCE_S: Final = 1800
_KNOWN: Final = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_URI: Final = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})")
_UNKNOWN: Final = re.compile(
    r"E: (?:Unable to locate package|Unable to find a source package for|Package '?) ?(?P<name>[a-z0-9.+-]+)"
)
_KEYS: Final = ("NO_PUBKEY", "is not signed", "Missing key")

Say = Callable[[str], None]


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
    """A private apt: its folder, and what it is for."""

    folder: Path
    suite: str
    arch: str
    sources: bool

    def run(self, program: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run apt on it. Raises UserError when it is not there or does not end."""
        command = (_program(program, "apt"), "--config-file", str(self.folder / "apt.conf"), *arguments)
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        try:
            return subprocess.run(
                command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=_PATIENCE_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise UserError(
                f"{program} gave no end within {_PATIENCE_S} s", hint="is the network there? try again"
            ) from None


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
    state = _state(suite, arch, sources=False, say=say)
    for name in packages:
        if _KNOWN.fullmatch(name) is None:
            raise UserError(f"{name!r} is no name of a Debian package", hint="names are of a-z, 0-9, '+', '-' and '.'")
    with cache.locked(state.folder / ".lock"):
        told = state.run("apt-get", "install", "--yes", "--print-uris", "--", *packages)
    if told.returncode != 0:
        raise _refusal(state, told.stderr)
    found = parse_uris(told.stdout, (suite, arch))
    if not found and packages:
        raise UserError(f"apt resolved {', '.join(packages)} to nothing: {told.stdout.strip()[-500:]}")
    return sorted(found, key=lambda package: package.name)


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
    missing = [package for package, path in zip(packages, paths, strict=True) if not path.exists()]
    for of in sorted({package.of for package in missing}):
        wanted = [package for package in missing if package.of == of]
        say(f"fetching {len(wanted)} packages of {of[0]} for {of[1]} ({sum(p.size for p in wanted) / 1e6:.1f} MB)")
        state = _state(*of, sources=False, say=say)
        names = [f"{package.name}:{of[1]}={package.version}" for package in wanted]
        _download(state, ("apt-get", "download", "--", *names), [(p.file, p.sha256) for p in wanted])
    return paths


def source(package: str, suite: str, say: Say = lambda _: None) -> Path:
    """The upstream tarball (.orig.tar.*) of a source package, its SHA-256 checked. Raises UserError, StorageError."""
    if _KNOWN.fullmatch(package) is None:
        raise UserError(f"{package!r} is no name of a Debian source package")
    # Sources are of no architecture; apt wants one.
    state = _state(suite, "amd64", sources=True, say=say)
    command = ("apt-get", "source", "--tar-only", "--only-source", "--download-only")
    with cache.locked(state.folder / ".lock"):
        told = state.run(*command, "--print-uris", "--", package)
    if told.returncode != 0:
        raise _refusal(state, told.stderr)
    found = [line for line in _URI.finditer(told.stdout) if ".orig.tar." in line["file"]]
    if len(found) != 1 or found[0]["file"].endswith(".asc"):
        names = ", ".join(line["file"] for line in _URI.finditer(told.stdout))
        raise UserError(f"the source package {package} of {suite} has no single .orig.tar: it has {names or 'nothing'}")
    file, sha256 = unquote(found[0]["file"]), found[0]["sha256"]
    path = _kept_at(sha256, file)
    if not path.exists():
        say(f"fetching {file} ({int(found[0]['size']) / 1e6:.1f} MB)")
        _download(state, (*command, "--", package), [(file, sha256)])
    return path


def unpack(deb: Path, target: Path, *, only: Sequence[str] = (), without: Sequence[str] = ()) -> None:
    """Put the files of a package below the folder `target`; nothing of the package is run.

    Links to folders that are there stay (a usr-merged tree takes packages that have /bin and /lib), and everything
    belongs to the caller. `only` and `without` are patterns of tar, such as `./usr/share/doc/*`; `*` takes in slashes.
    Raises UserError, StorageError.
    """
    reader, writer = _program("dpkg-deb", "dpkg"), _program("tar", "tar")
    command = (
        *(writer, "--extract", "--file", "-", "--directory", str(target), "--wildcards"),
        *("--keep-directory-symlink", "--no-same-owner", "--preserve-permissions", "--warning=no-timestamp"),
        *(f"--exclude={pattern}" for pattern in without),
        *("--", *only),
    )
    with subprocess.Popen((reader, "--fsys-tarfile", str(deb)), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tar:
        assert tar.stdout is not None
        assert tar.stderr is not None
        done = subprocess.run(command, stdin=tar.stdout, capture_output=True, text=True, check=False)
        tar.stdout.close()
        said = tar.stderr.read().decode(errors="replace")
    if done.returncode != 0 or tar.returncode != 0:
        why = (done.stderr or said).strip().splitlines() or ["no reason given"]
        raise StorageError(f"cannot unpack {deb} to {target}: {why[0]}", hint="free space there, or remove the file")


def _kept_at(sha256: str, file: str) -> Path:
    """Where a file of that SHA-256 is, or would be; it is used now."""
    path = cache.folder("packages") / sha256[:32] / file
    cache.used(path.parent)
    return path


def _download(state: _State, command: Sequence[str], wanted: Sequence[tuple[str, str]]) -> None:
    """Let apt download into a folder of its own; move the files that have their SHA-256 into the cache."""
    with tempfile.TemporaryDirectory(prefix=".download-", dir=cache.folder("packages")) as name:
        place = Path(name)
        with cache.locked(state.folder / ".lock"):
            told = state.run(*command, cwd=place)
        if told.returncode != 0:
            raise _refusal(state, told.stderr)
        for file, sha256 in wanted:
            got = place / file
            if not got.exists():
                raise UserError(f"apt said that it has downloaded {file}, and it is not there", hint="try again")
            found = cache.sha256(got)
            if found != sha256:
                raise UserError(f"{file} has the SHA-256 {found}, and the archive's lists say {sha256}")
            got.chmod(0o644)
            kept = _kept_at(sha256, file)
            kept.parent.mkdir(exist_ok=True)
            kept.parent.chmod(0o755)
            got.rename(kept)


def _state(suite: str, arch: str, *, sources: bool, say: Say) -> _State:
    """The private apt for that, with its lists read. Raises UserError."""
    if re.fullmatch(r"[a-z][a-z0-9-]*", suite) is None:
        raise UserError(f"{suite!r} is no suite of Debian", hint="name one such as trixie")
    entry = apt_sources.main_archive(_sources_files())
    text = apt_sources.stanza(entry, suite, arch, sources=sources)
    state = _State(cache.entry("apt", text.encode()), suite, arch, sources)
    state.folder.mkdir(exist_ok=True)
    cache.used(state.folder)
    read = state.folder / "lists-are-read"
    with cache.locked(state.folder / ".lock"):
        if read.exists():
            return state
        _write(state, text)
        say(f"reading the package lists of {suite} ({'sources' if sources else arch})")
        told = state.run("apt-get", "update", "--error-on=any")
        if told.returncode != 0:
            raise _unreadable(state, told.stderr)
        read.touch()
    return state


def _sources_files() -> dict[str, str]:
    """apt's sources files, path -> text, in its order."""
    if chosen := os.environ.get("HUGEWISE_APT_SOURCES"):
        paths = [Path(chosen)]
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


def _write(state: _State, sources: str) -> None:
    """The folder's files: apt.conf, the source, an empty status, and the folders that apt wants."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (state.folder / name).mkdir(parents=True, exist_ok=True)
    (state.folder / "status").touch()
    (state.folder / "main.sources").write_text(sources)
    (state.folder / "apt.conf").write_text(configuration(state.folder, state.arch))


def configuration(folder: Path, arch: str) -> str:
    """apt.conf(5) of a private state in `folder`, read after the machine's own, which it changes for itself. Pure.

    The machine's hooks are cleared: they are for what the machine installs, and some remove its downloads. apt's
    unprivileged user cannot write in an account's cache, so that downloads are done as the caller.
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
        'APT::Sandbox::User "";',
        f'Dir::State "{folder}/state/";',
        f'Dir::State::status "{folder}/status";',
        f'Dir::Cache "{folder}/cache/";',
        f'Dir::Etc::sourcelist "{folder}/main.sources";',
        *(f'Dir::Etc::{name} "/dev/null";' for name in ("sourceparts", "preferences", "preferencesparts")),
        f'Dir::Log "{folder}/";',
        'Acquire::ForceHash "SHA256";',
        'Acquire::Languages "none";',
    )  # fmt: skip
    return "\n".join(lines) + "\n"


def _refusal(state: _State, stderr: str) -> UserError:
    """Why apt did not do it: a name that the suite does not have, or its own words."""
    unknown = sorted({each["name"] for each in _UNKNOWN.finditer(stderr)})
    if unknown and state.sources:
        return UserError(
            f"Debian {state.suite} has no source package named {' and '.join(unknown)}",
            hint="a source package often has another name than its programs: apt-cache showsrc PROGRAM says it",
        )
    if unknown:
        listed = state.run("apt-cache", "pkgnames").stdout.split()
        near = sorted({name for each in unknown for name in difflib.get_close_matches(each, listed, n=3)})
        hint = f"names near it: {', '.join(near)}" if near else "search names with: apt-cache search WORD"
        return UserError(
            f"Debian {state.suite} has no package for {state.arch} named {' and '.join(unknown)}", hint=hint
        )
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
    return UserError(what, hint="is the network there, and does `apt-get update` work on this machine?")


def _words(stderr: str) -> str:
    """What apt complains of, first errors, then warnings; at most two lines."""
    lines = [line for mark in ("E: ", "W: ") for line in stderr.splitlines() if line.startswith(mark)]
    return "; ".join(line[3:] for line in lines[:2]) or stderr.strip()[-300:] or "it gave no reason"
