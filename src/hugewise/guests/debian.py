"""Debian packages of any suite and architecture, had through this machine's own apt, unpacked and never installed.

apt runs in a sandbox (`guests.cache`) with a state of its own: an empty dpkg status, and one archive. Proxies and
credentials are the machine's; its sources, lists and hooks are neither changed nor run. The lists stay in the cache, so
that a study resolves to the same versions again; remove `apt/` there to have them read anew.

`unpack` resolves paths and links of a package below the folder, never by this host. No file gets setuid or setgid.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote

import msgspec

from hugewise import unprivileged
from hugewise.errors import HugewiseError, StorageError, UserError
from hugewise.guests import cache
from hugewise.guests.cache import Sandbox, open_sandbox
from hugewise.model.guest import Architecture
from hugewise.model.workload import Missing
from hugewise.unprivileged import NAME, Finished, Say

_ARCHIVE: Final = "http://deb.debian.org/debian"
_KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_TARGET: Final = "$(ORIGIN) $(COMPONENT) $(RELEASE) $(REPO_URI)"


@functools.cache
def _archive_uri() -> str:
    if shutil.which("apt-get") is None:
        return _ARCHIVE
    done = unprivileged.run(["apt-get", "indextargets", "--format", _TARGET, "Created-By: Packages"])
    for line in done.stdout.splitlines():
        origin, component, suite, uri = (line.split() + [""] * 4)[:4]
        if (origin, component) == ("Debian", "main") and "-" not in suite and uri.startswith("http"):
            # a suite with a suffix is for updates or security
            return uri.rstrip("/")
    return _ARCHIVE


def archive(suite: str, arch: str, *, sources: bool = False) -> str:
    """Return apt's sources file for the suite: this machine's archive, else Debian's. Raises HugewiseError."""
    lines = (
        f"Types: {'deb-src' if sources else 'deb'}",
        f"URIs: {_archive_uri()}",
        f"Suites: {suite}",
        "Components: main",
        f"Architectures: {arch}",
        # Otherwise apt also fetches what other software asked for (application metadata).
        f"Targets: {'Sources' if sources else 'Packages'}",
        f"Signed-By: {_KEYRING}",
    )
    return "\n".join(lines) + "\n"


# Programs that are run, and their packages.
_PROGRAMS: Final = {"apt-get": "apt", "dpkg-deb": "dpkg"}

# Debian's names of architectures.
ARCHITECTURES: Final[Mapping[Architecture, str]] = {"x86-64": "amd64", "arm64": "arm64"}

_PATIENCE_S: Final = 1800
_KNOWN: Final = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_URI: Final = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})")
_UNKNOWN: Final = re.compile(
    r"E: (?:Unable to locate package|Unable to find a source package for|Package '?) ?(?P<name>[a-z0-9.+-]+)"
)

# apt's proxies.
_PASSED: Final = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")
# Files beside the archive's lists.
_NO_LISTS: Final = ("partial", "auxfiles", "lock")
_LISTS: Final = "lists"
_APT: Final = "apt"  # folder in the cache
# Folders that apt requires.
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
    suite: str
    arch: str
    sources: bool
    text: str
    folder: Path | None = None


class _Apt(msgspec.Struct, frozen=True):
    state: _State
    sandbox: Sandbox

    def run(self, program: str, *arguments: str) -> Finished:
        command = (_program(program), "--config-file", str(self.sandbox.lent / "apt.conf"), *arguments)
        proxies = {name: os.environ[name] for name in _PASSED if name in os.environ}
        fixed = {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        return self.sandbox.run(command, timeout=_PATIENCE_S, environment={**proxies, **fixed})


def missing() -> tuple[Missing, ...]:
    """Return what this machine lacks to fetch and to unpack Debian packages."""
    return tuple(
        Missing(f"guests of Debian packages need {name} on this machine", package)
        for name, package in _PROGRAMS.items()
        if shutil.which(name) is None
    )


def _program(name: str) -> str:
    if (path := shutil.which(name)) is None:
        cure = f"apt install {_PROGRAMS.get(name, 'apt')}"
        raise UserError(f"guests of Debian packages need {name} on this machine", hint=cure)
    return path


def resolve(packages: Sequence[str], suite: str, arch: str, say: Say = lambda _: None) -> list[Package]:
    """Return `packages` and all that they depend on (no Recommends), sorted by name. Raises UserError."""
    _must_be_names(packages)
    with _apt(_state(suite, arch, sources=False, say=say)) as apt:
        finished = apt.run("apt-get", "install", "--yes", "--print-uris", "--", *packages)
        if finished.status != 0:
            raise _refusal(apt, finished.stderr)
    resolved = parse_uris(finished.stdout, (suite, arch))
    if not resolved and packages:
        raise UserError(f"apt resolved {', '.join(packages)} to nothing: {finished.stdout.strip()[-500:]}")
    return sorted(resolved, key=lambda package: package.name)


def _must_be_names(packages: Sequence[str]) -> None:
    for name in packages:
        if _KNOWN.fullmatch(name) is None:
            raise UserError(f"{name!r} is no name of a Debian package", hint="names are of a-z, 0-9, '+', '-' and '.'")


def parse_uris(text: str, of: tuple[str, str]) -> list[Package]:
    """Return the packages in what `apt-get install --print-uris` says. Pure."""
    packages = []
    for line in _URI.finditer(text):
        name, version, arch = unquote(line["file"]).removesuffix(".deb").split("_")
        packages.append(
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
    return packages


def fetch(packages: Sequence[Package], say: Say = lambda _: None) -> list[Path]:
    """Return the .deb files, each with the SHA-256 of the signed lists. Raises UserError, StorageError."""
    paths = [_package_path(package.sha256, package.file) for package in packages]
    missing = [p for p, path in zip(packages, paths, strict=True) if not _is_intact(path, p.sha256, say)]
    for of in sorted({package.of for package in missing}):
        wanted = [package for package in missing if package.of == of]
        say(f"fetching {len(wanted)} packages of {of[0]} for {of[1]} ({sum(p.size for p in wanted) / 1e6:.1f} MB)")
        state = _state(*of, sources=False, say=say)
        names = [f"{package.name}:{of[1]}={package.version}" for package in wanted]
        _download(state, ("apt-get", "download", "--", *names), [(p.file, p.sha256) for p in wanted])
    return paths


def source(package: str, suite: str, say: Say = lambda _: None) -> Path:
    """Return a source package's upstream tarball (.orig.tar.*), checked by SHA-256. Raises UserError, StorageError."""
    _must_be_names([package])
    # Sources are of no architecture; apt wants one.
    state = _state(suite, "amd64", sources=True, say=say)
    command = ("apt-get", "source", "--tar-only", "--only-source", "--download-only")
    with _apt(state) as apt:
        finished = apt.run(*command, "--print-uris", "--", package)
        if finished.status != 0:
            raise _refusal(apt, finished.stderr)
    archives = [line for line in _URI.finditer(finished.stdout) if ".orig.tar." in line["file"]]
    if len(archives) != 1 or archives[0]["file"].endswith(".asc"):
        names = ", ".join(line["file"] for line in _URI.finditer(finished.stdout))
        raise UserError(f"the source package {package} of {suite} has no single .orig.tar: it has {names or 'nothing'}")
    file, sha256 = unquote(archives[0]["file"]), archives[0]["sha256"]
    path = _package_path(sha256, file)
    if not _is_intact(path, sha256, say):
        say(f"fetching {file} ({int(archives[0]['size']) / 1e6:.1f} MB)")
        _download(state, (*command, "--", package), [(file, sha256)])
    return path


def _package_path(sha256: str, file: str) -> Path:
    return cache.folder("packages") / sha256[:32] / file


def _is_intact(path: Path, sha256: str, say: Say) -> bool:
    if not path.exists():
        return False
    if cache.sha256(path) == sha256:
        return True
    say(f"{path} is damaged: it is fetched anew")
    return False


def _download(state: _State, command: Sequence[str], wanted: Sequence[tuple[str, str]]) -> None:
    with _apt(state) as apt:
        finished = apt.run(*command)
        if finished.status != 0:
            raise _refusal(apt, finished.stderr)
        for file, sha256 in wanted:
            if not os.path.lexists(apt.sandbox.own / file):
                raise UserError(f"apt said that it has downloaded {file}, and it is not there", hint="try again")
            kept = _package_path(sha256, file)
            kept.parent.mkdir(exist_ok=True)
            kept.parent.chmod(0o755)
            with cache.locked(kept.parent.with_name(f".{kept.parent.name}.lock")):
                cache.put_entry(kept, functools.partial(_take, apt.sandbox, file, sha256))


def _take(sandbox: Sandbox, file: str, sha256: str, place: Path) -> None:
    sandbox.take(file, place)
    digest = cache.sha256(place)
    if digest != sha256:
        raise UserError(f"{file} has the SHA-256 {digest}, and the archive's lists say {sha256}")


def _state(suite: str, arch: str, *, sources: bool, say: Say) -> _State:
    if re.fullmatch(r"[a-z][a-z0-9-]*", suite) is None:
        raise UserError(f"{suite!r} is no suite of Debian", hint="name one such as trixie")
    text = archive(suite, arch, sources=sources)
    state = _State(suite, arch, sources, text)

    def read(place: Path) -> None:
        say(f"reading the package lists of {suite} ({'sources' if sources else arch})")
        with _apt(state) as apt:
            finished = apt.run("apt-get", "update", "--error-on=any")
            if finished.status != 0:
                raise _unreadable(state, finished.stderr)
            place.mkdir()
            apt.sandbox.take(_LISTS, place / _LISTS, without=_NO_LISTS)
        (place / "main.sources").write_text(text, encoding="utf-8")

    return msgspec.structs.replace(state, folder=cache.cached(_APT, text.encode(), read))


@contextmanager
def _apt(state: _State) -> Iterator[_Apt]:
    with open_sandbox() as sandbox:
        lists = sandbox.own / _LISTS
        if state.folder is not None:
            for path in (state.folder / _LISTS).iterdir():
                sandbox.lend(path, f"{_LISTS}/{path.name}", kept=True)
            lists = sandbox.lent / _LISTS
        made = sandbox.run(("mkdir", "--parents", *_FOLDERS), timeout=_PATIENCE_S, environment={})
        if made.status != 0:
            raise StorageError(f"cannot make folders in {sandbox.own}: {made.why}", hint="free space there")
        sandbox.write("status", "")
        sandbox.write("main.sources", state.text)
        sandbox.write("apt.conf", configuration(sandbox, lists, state.arch))
        yield _Apt(state, sandbox)


def configuration(sandbox: Sandbox, lists: Path, arch: str) -> str:
    """Return the apt.conf(5) of a private state, read after the machine's own, whose hooks are cleared."""
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
        f'Dir::State "{sandbox.own}/state/";',
        f'Dir::State::lists "{lists}/";',
        f'Dir::State::status "{sandbox.lent}/status";',
        f'Dir::Cache "{sandbox.own}/cache/";',
        f'Dir::Etc::sourcelist "{sandbox.lent}/main.sources";',
        *(f'Dir::Etc::{name} "/dev/null";' for name in ("sourceparts", "preferences", "preferencesparts")),
        f'Dir::Log "{sandbox.own}/";',
        'Acquire::ForceHash "SHA256";',
        'Acquire::Languages "none";',
    )  # fmt: skip
    return "\n".join(lines) + "\n"


def _refusal(apt: _Apt, stderr: str) -> HugewiseError:
    state = apt.state
    if unknown := sorted({match["name"] for match in _UNKNOWN.finditer(stderr)}):
        kind = "source package" if state.sources else f"package for {state.arch}"
        return UserError(
            f"Debian {state.suite} has no {kind} named {' and '.join(unknown)}",
            hint="search names with: apt-cache search WORD; the source package of a program: apt-cache showsrc PROGRAM",
        )
    if os.strerror(errno.ENOSPC) in stderr or "enough free space" in stderr:
        return StorageError(f"apt: {_apt_reason(stderr)}", hint=f"free space at {apt.sandbox.own} (below /var/tmp)")
    return UserError(
        f"apt: {_apt_reason(stderr)}",
        hint=f"is the network there? where the archive has newer versions by now: rm -r {state.folder}",
    )


def _unreadable(state: _State, stderr: str) -> UserError:
    return UserError(
        f"cannot read the package lists of Debian {state.suite}: {_apt_reason(stderr)}",
        hint=f"is the network there, does `apt-get update` work, also as {NAME}, who runs apt for root? where a key is"
        " missing: apt install --only-upgrade debian-archive-keyring",
    )


def _apt_reason(stderr: str) -> str:
    lines = [line for mark in ("E: ", "W: ") for line in stderr.splitlines() if line.startswith(mark)]
    return "; ".join(line[3:] for line in lines[:2]) or stderr.strip()[-300:] or "it gave no reason"


_MOST_STEPS: Final = 400  # along a path and the links in it
_DEEPEST: Final = 100  # folders


def unpack(deb: Path, root: Path, *, only: Sequence[str] = (), without: Sequence[str] = ()) -> None:
    """Put a package's files below `root`; links to folders stay (usr-merged trees), times do not. `only` and `without`
    are patterns such as `./usr/share/doc/*`, whose `*` takes in slashes. Raises StorageError.
    """
    argv = (_program("dpkg-deb"), "--fsys-tarfile", str(deb))
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        refused = broken = ""
        try:
            _extract(reading.stdout, root, only, without)
        except tarfile.TarError as error:
            broken = str(error)
        except OSError as error:
            refused = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        except (ValueError, OverflowError) as error:
            refused = str(error)
        reading.stdout.close()
        errors = reading.stderr.read().decode(errors="replace").strip().partition("\n")[0]
    if refused or broken or reading.returncode != 0:
        why = refused or errors or broken or f"exit status {reading.returncode}"
        raise StorageError(f"cannot unpack {deb} to {root}: {why}", hint="free space there, or remove the file")


def walk(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything below `folder` as (path relative to it, entry), in the order of the paths; links are not followed."""
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        yield entry.name, entry
        if entry.is_dir(follow_symlinks=False):
            for name, below in walk(Path(entry.path)):
                yield f"{entry.name}/{name}", below


def resolve_inside(root: Path, path: str) -> Path:
    """Resolve a path of the guest below `root`, links as the guest follows them. Raises StorageError for a loop."""
    at = root
    parts = [part for part in reversed(path.split("/")) if part]
    for _ in range(_MOST_STEPS):
        if not parts:
            return at
        part = parts.pop()
        if part == ".." and at != root:
            at = at.parent
        elif part not in ("..", "."):
            step = at / part
            if step.is_symlink():
                target = str(step.readlink())
                at = root if target.startswith("/") else at
                parts.extend(step_name for step_name in reversed(target.split("/")) if step_name)
            else:
                at = step
    raise StorageError(f"{path} of an image follows links without end")


def _extract(stream: IO[bytes], root: Path, only: Sequence[str], without: Sequence[str]) -> None:
    with tarfile.open(fileobj=stream, mode="r|") as members:
        for member in members:
            name = member.name
            if only and not any(fnmatchcase(name, pattern) for pattern in only):
                continue
            if not any(fnmatchcase(name, pattern) for pattern in without):
                _put(members, member, root)


def _put(members: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    # A name may become a word of another program's orders.
    printable = all(character.isprintable() and character != '"' for character in member.name)
    if ".." in parts or len(parts) > _DEEPEST or not printable:
        raise ValueError(f"{member.name!r} is no place in a package")
    if not parts:
        return
    folder = resolve_inside(root, "/".join(parts[:-1]))
    folder.mkdir(parents=True, exist_ok=True)
    place, mode = folder / parts[-1], stat.S_IMODE(member.mode) & 0o777
    if member.isdir():
        if place.is_symlink():
            resolve_inside(root, member.name).mkdir(parents=True, exist_ok=True)
        else:
            place.mkdir(exist_ok=True)
            place.chmod(mode | stat.S_IRWXU)
        return
    place.unlink(missing_ok=True)
    if member.isreg():
        data = members.extractfile(member)
        assert data is not None
        with place.open("xb") as writing:
            shutil.copyfileobj(data, writing, 1 << 20)
        place.chmod(mode | stat.S_IRUSR)
    elif member.issym():
        place.symlink_to(member.linkname)
    elif member.islnk():
        first = resolve_inside(root, member.linkname)
        if first.is_symlink() or not first.is_file():
            raise ValueError(f"{member.name!r} is a link to {member.linkname!r}, which is no file of the package")
        os.link(first, place)
    else:
        raise ValueError(f"{member.name!r} is a device or a pipe")
