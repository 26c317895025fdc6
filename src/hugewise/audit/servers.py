"""Servers of a host with their settings about pages: running ones, those of services, those of the usual places.

Files of PostgreSQL, MySQL and MariaDB, redis and valkey, memcached and MongoDB are read: the last value of each known
key; other keys may be secrets and are not kept. Included files are followed for some levels. A server in a container
names files that are not this host's: only its command line is read.

Files named by others (in a command line that anybody may have, in a file that includes another) are read only on a file
system that stores files. Some of the kernel's own files act when they are read (the kernel's log is then lost to its
logger), and a file system served by a program answers when the program likes.

Sources: each server's own documentation of its file.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath

import msgspec

from hugewise.audit.demand import POSTGRESQL_SIZES, SYNTAX_ERROR
from hugewise.audit.facts import Placed, ServerConfig, ServerKind
from hugewise.audit.packages import version_of
from hugewise.audit.root import Root
from hugewise.audit.running import Seen, server_kind, shown_value
from hugewise.audit.systemd import LoadedUnit, words

MOST_NAMED = 4 << 20
"""Bytes that are read of all files which one account's processes name; of the files of one service."""

_MOST_NAMED_FILES = 1000
_MOUNT = re.compile(r"^mnt_id:\t([0-9]{1,10})$", re.MULTILINE)
_REFUSED = re.compile(
    "proc|sysfs|debugfs|tracefs|securityfs|cgroup2?|pstore|bpf|efivarfs|configfs|binfmt_misc|selinuxfs|smackfs|mqueue"
    r"|devpts|autofs|fusectl|nfsd|rpc_pipefs|functionfs|gadgetfs|resctrl|dmabuf|nsfs|sockfs|pipefs|fuse(?:\..*)?"
)


class NamedFiles(Root):
    """The host of `root`, by the paths that somebody else names: so many bytes of so many files are read of it."""

    def __init__(self, root: Root) -> None:
        super().__init__(root.folder)
        self.host = root
        self._unread = root._unread
        self._left, self._files = MOST_NAMED, _MOST_NAMED_FILES
        self._kinds: dict[str, str] = {}

    def content(self, path: str, most: int = MOST_NAMED, *, whole: bool = True) -> bytes:
        """Read a file as `Root.content`, within the limits on named files."""
        if self._left <= 0 or self._files <= 0:
            raise OSError(errno.EFBIG, "not read: too much was named beside it", path)
        self._files -= 1
        data = super().content(path, most, whole=whole)
        self._left -= len(data)
        return data

    def _entered(self, descriptor: int, path: str) -> None:
        kind = self._kind(descriptor)
        if _REFUSED.fullmatch(kind):
            raise OSError(errno.EACCES, f"no place of settings: a file system of the kind {kind}", path)

    def _kind(self, descriptor: int) -> str:
        # asked of the kernel: a program that serves a file system does not hear of it
        try:
            match = _MOUNT.search(Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii"))
            if match is None:
                return "unknown"
            if match[1] not in self._kinds:
                text = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
                lines = (line.partition(" - ") for line in text.split("\n"))
                self._kinds = {before.partition(" ")[0]: after.partition(" ")[0] for before, _, after in lines}
        except OSError:
            return "unknown"
        return self._kinds.get(match[1], "unknown")


_DEEPEST = 8
_MOST_FILES = 200
_POSTGRESQL = {"huge_pages", "huge_page_size", "shared_buffers", "data_directory", *POSTGRESQL_SIZES}
_POSTGRESQL_WORD = re.compile(
    r"[+-]?(?:\d+|0x[\da-f]+)[a-z]*|[+-]?(?=\.?\d)\d*\.\d*(?:e[+-]?\d+)?|[a-z_][\w.:/-]*", re.IGNORECASE
)
_MYSQL = {"large_pages", "innodb_buffer_pool_size", "super_large_pages"}
_REDIS = {"disable-thp", "include"}
_MONGODB = {"cacheSizeGB", "tcmallocEnableBackgroundThread", "tcmallocReleaseRate"}
_ASSIGNED = re.compile(r"([A-Za-z_.]{1,64})\s*(?:=|\s)\s*(?:'([^']{0,400})'|([^\s#']{0,400}))")
_YAML = re.compile(r"\s*([A-Za-z]{1,64})\s*:\s*([\w.+-]{1,64})\s*(?:#.*)?")

MYSQL_GROUPS = re.compile(r"server|mysqld(?:-[\d.]+)?|mariadb(?:-[\d.]+)?|mariadbd(?:-[\d.]+)?")


class _Reading:
    """Reading of a file with what it includes: so many files, so deep."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.found: dict[str, Placed] = {}
        self.left = _MOST_FILES

    def lines(self, path: str, depth: int) -> Iterator[tuple[str, str]]:
        """Yield the file's lines without comments, each with its place."""
        self.left -= 1
        if self.left < 0 or depth > _DEEPEST or not path.startswith("/"):
            return
        for number, line in enumerate((self.root.text(path) or "").split("\n"), 1):
            stripped = line.strip()
            if stripped and not stripped.startswith("#"):
                yield stripped, f"{path}:{number}"

    def folder(self, path: str, read: Callable[[str], None], *endings: str) -> None:
        for name in self.root.names(path):
            if name.endswith(endings) and not name.startswith("."):
                read(f"{path}/{name}")

    def keep(self, key: str, value: str, where: str) -> None:
        self.found[key] = Placed(key, shown_value(value), where)


def _beside(path: str, other: str) -> str:
    """Resolve a path that a file names, against that file's folder."""
    return str(PurePosixPath(path).parent / other)


def postgresql_settings(root: Root, path: str) -> dict[str, Placed]:
    """postgresql.conf with include, include_if_exists and include_dir, then postgresql.auto.conf of its data folder."""
    reading = _Reading(root)

    def read(file: str, depth: int = 0) -> None:
        for text, where in reading.lines(file, depth):
            match = _ASSIGNED.match(text)
            if match is None:
                continue
            key, value = match[1].lower(), match[2] if match[2] is not None else match[3]
            if key in ("include", "include_if_exists"):
                read(_beside(file, value), depth + 1)
            elif key == "include_dir":
                reading.folder(_beside(file, value), lambda each: read(each, depth + 1), ".conf")
            elif key in _POSTGRESQL:
                # PostgreSQL's paths are wanted whole.
                kept = value if key == "data_directory" else _postgresql_value(text, match)
                reading.found[key] = Placed(key, kept, where)

    read(path)
    data = reading.found.get("data_directory")
    read(f"{data.value if data is not None else PurePosixPath(path).parent}/postgresql.auto.conf")
    return reading.found


def _postgresql_value(text: str, match: re.Match[str]) -> str:
    """Return the value of a line as it may be printed, marked where the server cannot parse the line: without quotes, a
    value is a word, a whole number with its unit, or a fraction alone.
    """
    rest = text[match.end() :].strip()
    if (match[2] is None and _POSTGRESQL_WORD.fullmatch(match[3]) is None) or (rest and not rest.startswith("#")):
        written = text[match.start(3) if match[2] is None else match.start(2) - 1 :].partition("#")[0].strip()
        return f"{shown_value(written)} {SYNTAX_ERROR}"
    return shown_value(match[3] if match[2] is None else match[2].strip())


def mysql_settings(root: Root, paths: Iterable[str]) -> dict[str, Placed]:
    """Option files with !include and !includedir: the groups that servers read; `-` and `_` are the same in keys."""
    reading = _Reading(root)

    def read(file: str, depth: int = 0) -> None:
        group = ""
        for text, where in reading.lines(file, depth):
            if text.startswith("!includedir"):
                reading.folder(_rest(text), lambda each: read(each, depth + 1), ".cnf")
            elif text.startswith("!include"):
                read(_rest(text), depth + 1)
            elif text.startswith("["):
                group = text.strip("[] ")
            elif MYSQL_GROUPS.fullmatch(group):
                key, equals, value = text.partition("=")
                given = _mysql_option(key.strip(), _unquoted(value) if equals else None)
                if given is not None:
                    reading.keep(*given, where)

    for path in paths:
        read(path)
    return reading.found


def _mysql_option(key: str, value: str | None) -> tuple[str, str] | None:
    """Name and value of an option about pages: `-` is `_`; loose_, enable_, disable_ and skip_ may stand before it."""
    name = key.replace("-", "_").lower().removeprefix("loose_")
    if name in _MYSQL:
        return name, "ON" if value is None else value
    before, _, rest = name.partition("_")
    if before in ("enable", "disable", "skip") and rest == "large_pages":
        return rest, "ON" if before == "enable" else "OFF"
    return None


def _unquoted(value: str) -> str:
    """Return a value of an option file: a comment may follow it, and quotes may stand around it."""
    stripped = value.strip()
    if stripped[:1] in ("'", '"') and (end := stripped.find(stripped[0], 1)) > 0:
        return stripped[1:end]
    return stripped.partition("#")[0].strip()


def _rest(text: str) -> str:
    return text.partition(" ")[2].strip()


def redis_settings(root: Root, path: str) -> dict[str, Placed]:
    """redis.conf or valkey.conf, with include."""
    reading = _Reading(root)

    def read(file: str, depth: int = 0) -> None:
        for text, where in reading.lines(file, depth):
            line_words = words(text)
            if len(line_words) > 1 and (key := line_words[0].lower()) in _REDIS:
                if key == "include":
                    read(_beside(file, line_words[1]), depth + 1)
                else:
                    reading.keep(key, line_words[1], where)

    read(path)
    return reading.found


def memcached_settings(root: Root, path: str) -> list[str]:
    """Return the options in Debian's /etc/memcached.conf, or in OPTIONS= of Red Hat's /etc/sysconfig/memcached."""
    found: list[str] = []
    for text, _ in _Reading(root).lines(path, 0):
        if text.startswith("-"):
            found += words(text)
        elif text.startswith("OPTIONS="):
            found += " ".join(words(text.removeprefix("OPTIONS="))).split()
    return found


def mongodb_settings(root: Root, path: str) -> dict[str, Placed]:
    """mongod.conf, whose known keys stand on lines of their own."""
    reading = _Reading(root)
    for text, where in reading.lines(path, 0):
        match = _YAML.fullmatch(text)
        if match is not None and match[1] in _MONGODB:
            reading.keep(match[1], match[2], where)
    return reading.found


_USUAL: Mapping[ServerKind, tuple[str, ...]] = {
    "postgresql": (
        "/etc/postgresql/*/*/postgresql.conf",
        "/var/lib/pgsql/*/data/postgresql.conf",
        "/var/lib/pgsql/data/postgresql.conf",
        "/usr/local/pgsql/data/postgresql.conf",
    ),
    "mysql": ("/etc/my.cnf", "/etc/mysql/my.cnf"),
    "redis": ("/etc/redis/redis.conf", "/etc/redis.conf", "/etc/valkey/valkey.conf"),
    "memcached": ("/etc/memcached.conf", "/etc/sysconfig/memcached"),
    "mongodb": ("/etc/mongod.conf",),
}
_ON_LINE = "on its command line"
_JAVA_VARIABLE = re.compile(r"JAVA|JVM|CATALINA_OPTS|(?:^|_)OPTS$", re.IGNORECASE)
_JVM = re.compile(
    r"-XX:(?:([+-])(UseTransparentHugePages|UseLargePages|UseHugeTLBFS|UseSHM|UseZGC)|"
    r"(LargePageSizeInBytes|ThreadStackSize|MaxHeapSize)=([\w.]{1,32}))"
)
# Options of java that take the next word; a module begins what is the program's own, as a file of -jar does.
_JVM_TAKES = {
    *("-cp", "-classpath", "--class-path", "-p", "--module-path", "--upgrade-module-path", "--add-modules"),
    *("--limit-modules", "--add-exports", "--add-opens", "--add-reads", "--patch-module", "--source"),
}
_JVM_FILE = re.compile(r"@(?P<words>/.{1,4096})|-XX:(?:VMOptionsFile|Flags)=(?P<options>/.{1,4096})")
# Read by every JVM, by the launcher alone, and by every JVM after its command line.
_JVM_BEFORE, _JVM_AFTER = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"), ("_JAVA_OPTIONS",)
_JVM_SHORT = re.compile(r"-(Xss|Xmx|Xms)(\d[\w.]{0,23})", re.ASCII)
_JAVA_VERSION = re.compile(r'^JAVA_VERSION="([\w.+-]{1,64})"', re.MULTILINE)
_MONGODB_PACKAGES = (
    *("mongodb-org-server", "mongodb-enterprise-server", "mongodb-org-unstable-server", "mongodb-server"),
    "percona-server-mongodb-server",
)
# Settings that came with a version: mongod does not start with one that it does not know.
_MONGODB_SINCE = {"tcmallocEnableBackgroundThread": "8.0 or newer"}


class _Launched(msgspec.Struct, frozen=True, kw_only=True):
    """Start of a server: its name, its words, and whether the files that they name are not this host's."""

    kind: ServerKind
    what: str
    argv: Sequence[str]
    pid: int | None = None
    unit: str | None = None
    contained: bool = False
    variables: Sequence[tuple[str, str, str]] = ()


def find_servers(root: Root, seen: Sequence[Seen], units: Iterable[LoadedUnit]) -> tuple[ServerConfig, ...]:
    """Return the servers found, running ones first."""
    loaded = list(units)
    named: defaultdict[str, NamedFiles] = defaultdict(lambda: NamedFiles(root))  # limits by account, not by process
    postmasters = {each.process.pid for each in seen if each.kind == "postgresql"}
    # A postmaster's children are not servers of their own.
    running = [each for each in seen if each.kind and not (each.kind == "postgresql" and each.parent in postmasters)]
    servers = [_running(NamedFiles(root) if each.of is None else named[each.of], each, loaded) for each in running]
    taken = {(each.kind, each.unit) for each in servers}
    for unit in loaded:
        for argv in unit.argvs:
            kind = server_kind(argv[0])
            name = unit.config.name
            # A template starts nothing by itself.
            if kind is not None and (kind, name) not in taken and not name.endswith("@.service"):
                launched = _Launched(kind=kind, what=name, argv=argv, unit=name, variables=unit.variables)
                servers.append(_configured(NamedFiles(root), launched))
        if not any(server_kind(argv[0]) == "jvm" for argv in unit.argvs) and ("jvm", unit.config.name) not in taken:
            servers += _passed_on(unit)
    kinds = {each.kind for each in servers}
    servers += [each for kind in _USUAL if kind not in kinds for each in _at_rest(NamedFiles(root), kind)]
    return tuple(servers)


def _passed_on(unit: LoadedUnit) -> Iterator[ServerConfig]:
    """Yield the settings in a Java variable of a service that starts no java itself: its programs may pass them on."""
    if unit.config.masked or unit.config.name.endswith("@.service"):
        return
    settings: dict[str, Placed] = {}
    for key, value, where in unit.variables:
        if _JAVA_VARIABLE.search(key):
            settings |= _of_jvm(words(value), f"{key}, {where}, where what the service starts passes it on")
    if any(key in settings for key in ("UseLargePages", "UseTransparentHugePages", "UseHugeTLBFS", "UseSHM")):
        yield ServerConfig(kind="jvm", what=unit.config.name, unit=unit.config.name, settings=settings)


def _running(root: Root, seen: Seen, units: Iterable[LoadedUnit]) -> ServerConfig:
    assert seen.kind is not None
    process = seen.process
    argv: Sequence[str] = seen.argv or (process.program,)
    if seen.kind == "redis":
        # The server overwrites its words by a title: the service's words are the original ones.
        by_unit = [argv for unit in units if unit.config.name == process.unit for argv in unit.argvs]
        argv = next((each for each in by_unit if server_kind(each[0]) == "redis"), argv)
        if not any(word.startswith("/") for word in argv[1:]) and not seen.contained:
            root.tell(f"process {process.pid} ({process.name})", "which file it read is not to be seen from outside")
    launched = _Launched(
        kind=seen.kind,
        what=f"process {process.pid} ({process.name})",
        argv=argv,
        pid=process.pid,
        unit=process.unit,
        contained=seen.contained,
    )
    server = _configured(root, launched)
    version = server.version
    if seen.kind == "jvm" and not seen.contained:
        version = _java_version(root, process.program)
    environment = {key: placed for one in process.environment for key, placed in _of_jvm_environment(one)}
    return msgspec.structs.replace(
        server,
        version=version,
        group=process.group,
        shared=process.shared,
        shared_huge=process.shared_huge,
        hugetlb=process.hugetlb,
        settings={**environment, **server.settings} if seen.kind == "jvm" else server.settings,
    )


def _configured(root: Root, launched: _Launched) -> ServerConfig:
    """Return the configuration from the files that the command line names, overridden by the command line."""
    if launched.contained:
        root = _Nothing()
    settings: dict[str, Placed] = {}
    version = None
    match launched.kind:
        case "postgresql":
            settings, version = _postgresql(root, launched.argv)
        case "mysql":
            settings = _mysql(root, launched.argv)
        case "redis":
            settings = _redis(root, launched.argv)
        case "memcached":
            settings = _memcached(launched.argv)
        case "jvm":
            settings = _java(root, launched)
            version = _java_version(root, launched.argv[0])
        case "mongodb":
            path = _option(launched.argv, "--config", "-f")
            settings = mongodb_settings(root, path) if path else {}
            version = _mongodb_version(root, settings)
    return ServerConfig(
        kind=launched.kind,
        what=launched.what,
        pid=launched.pid,
        unit=launched.unit,
        version=version,
        settings=settings,
    )


class _Nothing(Root):
    """The files of a host that are not to be seen."""

    def content(self, path: str, most: int = 0, *, whole: bool = True) -> bytes:
        del most, whole
        raise FileNotFoundError(2, "in a container", path)

    def entries(self, path: str) -> dict[str, bool] | None:
        del path
        return None


def _at_rest(root: Root, kind: ServerKind) -> Iterator[ServerConfig]:
    """Yield servers that are not running, by their files."""
    for path in (each for pattern in _USUAL[kind] for each in _matching(root, pattern)):
        settings: dict[str, Placed] = {}
        version = None
        match kind:
            case "postgresql":
                settings = postgresql_settings(root, path)
                settings.pop("data_directory", None)
            case "mysql":
                settings = mysql_settings(root, [path])
            case "redis":
                settings = redis_settings(root, path)
            case "memcached":
                settings = _memcached(memcached_settings(root, path), path)
            case "mongodb":
                settings = mongodb_settings(root, path)
                version = _mongodb_version(root, settings)
            case "jvm":
                continue
        yield ServerConfig(kind=kind, what=path, settings=settings, version=version)


def _matching(root: Root, pattern: str) -> Iterator[str]:
    """Yield the files that a pattern with `*` between slashes matches."""
    paths = [""]
    for part in pattern.split("/")[1:]:
        if "*" in part:
            paths = [f"{at}/{name}" for at in paths for name in root.names(at) if fnmatch.fnmatchcase(name, part)]
        else:
            paths = [f"{at}/{part}" for at in paths]
    for path in paths:
        if root.status(path) is not None:
            yield path


def _postgresql(root: Root, argv: Sequence[str]) -> tuple[dict[str, Placed], str | None]:
    data = _option(argv, "-D", "--data-directory") or ""
    given = dict(_assigned(argv))
    path = given.get("config_file") or (f"{data}/postgresql.conf" if data else "")
    settings = postgresql_settings(root, path) if path.startswith("/") else {}
    for key in _POSTGRESQL - {"data_directory"}:
        if key in given:
            settings[key] = Placed(key, shown_value(given[key]), _ON_LINE)
    directory = settings.pop("data_directory", None)
    version = root.text(f"{data or (directory.value if directory else '')}/PG_VERSION", 64)
    return settings, version.strip()[:16] if version else None


def _assigned(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the settings of `-c name=value`, `-cname=value`, `--name=value`; `-B` are PostgreSQL's 8 KiB buffers."""
    at = 1
    while at < len(argv):
        word = argv[at]
        at += 1
        if word in ("-c", "-B") and at < len(argv):
            word, at = f"{word}{argv[at]}", at + 1
        if word.startswith("-B") and word[2:].isdecimal():
            yield "shared_buffers", word[2:]
        key, equals, value = word.removeprefix("-c").removeprefix("--").partition("=")
        if equals and word.startswith(("-c", "--")):
            yield key.replace("-", "_"), value


def _mysql(root: Root, argv: Sequence[str]) -> dict[str, Placed]:
    only = _option(argv, "--defaults-file")
    extra = _option(argv, "--defaults-extra-file")
    paths = [only] if only else [*_USUAL["mysql"], *([extra] if extra else [])]
    settings = {} if "--no-defaults" in argv else mysql_settings(root, paths)
    for word in argv[1:]:
        key, equals, value = word.removeprefix("--").partition("=")
        option = _mysql_option(key, value if equals else None) if word.startswith("--") else None
        if option is not None:
            settings[option[0]] = Placed(option[0], shown_value(option[1]), _ON_LINE)
    return settings


def _redis(root: Root, argv: Sequence[str]) -> dict[str, Placed]:
    path = argv[1] if len(argv) > 1 and argv[1].startswith("/") else ""
    settings = redis_settings(root, path) if path else {}
    for word, value in pairwise(argv):
        if word == "--disable-thp":
            settings["disable-thp"] = Placed("disable-thp", shown_value(value), _ON_LINE)
    return settings


def _memcached(argv: Sequence[str], where: str = _ON_LINE) -> dict[str, Placed]:
    large = any(word in ("-L", "--enable-largepages") for word in argv)
    return {"large-pages": Placed("large-pages", "on", where)} if large else {}


def _java(root: Root, launched: _Launched) -> dict[str, Placed]:
    """Return the options of java; the last one of variables, command line and files in it decides."""
    variables = {key: (value, where) for key, value, where in launched.variables}
    found: dict[str, Placed] = {}

    def take(names: Iterable[str]) -> None:
        for name in names:
            if name in variables:
                value, where = variables[name]
                found.update(_of_jvm(words(value), f"{name}, {where}"))

    take(_JVM_BEFORE)
    for argv, where in _java_words(root, launched):
        found.update(_of_jvm(argv, where))
    take(_JVM_AFTER)
    return found


def _java_words(root: Root, launched: _Launched) -> Iterator[tuple[list[str], str]]:
    """Yield the options of a command line, and those of the files that it names by @FILE and VMOptionsFile."""
    at = 1
    argv = launched.argv
    while at < len(argv):
        word = argv[at]
        at += 1
        if (match := _JVM_FILE.fullmatch(word)) is not None:
            path = match["words"] or match["options"]
            text = root.text(path)
            if text is None:
                root.tell(path, f"{launched.what} names it, and it is not there: the options in it are not known")
            lines = [line.strip() for line in (text or "").split("\n")]
            held = " ".join(line for line in lines if not line.startswith("#"))
            yield words(held), f"{path}, which is {_ON_LINE}, {launched.what}"
        elif word in _JVM_TAKES:
            at += 1
        elif word in ("-jar", "-m", "--module") or not word.startswith("-"):
            return  # what follows is the program's own
        else:
            yield [word], f"{_ON_LINE}, {launched.what}"


def _of_jvm(argv: Iterable[str], where: str) -> Iterator[tuple[str, Placed]]:
    for word in argv:
        if match := _JVM.fullmatch(word):
            key, value = (match[2], "on" if match[1] == "+" else "off") if match[2] else (match[3], match[4])
            key = "Xmx" if key == "MaxHeapSize" else key
            yield key, Placed(key, value, where)
        elif match := _JVM_SHORT.fullmatch(word):
            yield match[1], Placed(match[1], match[2], where)


def _of_jvm_environment(one: Placed) -> Iterator[tuple[str, Placed]]:
    if "JAVA" in one.key.upper():
        yield from _of_jvm(one.value.split(), f"{one.key}, {one.where}")


def _java_version(root: Root, program: str) -> str | None:
    """Read the version from JAVA_HOME/release, where the program is JAVA_HOME/bin/java."""
    if not program.startswith("/"):
        return None
    text = root.text(f"{PurePosixPath(program).parent.parent}/release", 1 << 16)
    match = _JAVA_VERSION.search(text or "")
    return match[1] if match else None


def _mongodb_version(root: Root, settings: Mapping[str, Placed]) -> str | None:
    """Return the version of the package that brought the server; else what a versioned setting tells."""
    host = root.host if isinstance(root, NamedFiles) else root  # the list is not what somebody named
    version = None if isinstance(root, _Nothing) else version_of(host, _MONGODB_PACKAGES)
    if version is not None:
        return version
    return next((f"{since}, by {key}" for key, since in _MONGODB_SINCE.items() if key in settings), None)


def _option(argv: Sequence[str], *names: str) -> str | None:
    """Return the value of an option, as a word of its own or behind `=`; the last one counts."""
    value = None
    for at, word in enumerate(argv):
        for name in names:
            if word == name and at + 1 < len(argv):
                value = argv[at + 1]
            elif word.startswith(f"{name}="):
                value = word.partition("=")[2]
            elif len(name) == 2 and word.startswith(name) and len(word) > 2:
                value = word[2:]
    return value
