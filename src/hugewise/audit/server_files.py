"""The settings about pages in files of servers: PostgreSQL, MySQL and MariaDB, redis and valkey, memcached, MongoDB.

Each reader gives the last word of each known key; other keys may be secrets and are not kept. Files that include others
are followed for some levels. Sources: each server's own documentation of its file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath

from hugewise.audit.facts import Placed
from hugewise.audit.known import shown_value
from hugewise.audit.root import Root
from hugewise.audit.unit_text import words

__all__ = ["MYSQL_GROUPS", "memcached", "mongodb", "mysql", "postgresql", "redis"]

_DEEPEST = 8
_MOST_FILES = 200
_POSTGRESQL = {"huge_pages", "huge_page_size", "shared_buffers", "data_directory", "min_dynamic_shared_memory"}
_MYSQL = {"large_pages", "skip_large_pages", "innodb_buffer_pool_size", "super_large_pages"}
_REDIS = {"disable-thp", "include"}
_MONGODB = {"cacheSizeGB", "tcmallocEnableBackgroundThread", "tcmallocReleaseRate"}
_ASSIGNED = re.compile(r"([A-Za-z_.]{1,64})\s*(?:=|\s)\s*(?:'([^']{0,400})'|([^\s#']{0,400}))")
_YAML = re.compile(r"\s*([A-Za-z]{1,64})\s*:\s*([\w.+-]{1,64})\s*(?:#.*)?")

MYSQL_GROUPS = re.compile(r"server|mysqld(?:-[\d.]+)?|mariadb(?:-[\d.]+)?|mariadbd(?:-[\d.]+)?")


class _Reading:
    """One reading of a file with what it includes: so many files, so deep."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.found: dict[str, Placed] = {}
        self.left = _MOST_FILES

    def lines(self, path: str, depth: int) -> Iterator[tuple[str, str]]:
        """The file's lines without comments, each with its place."""
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
    """A path that a file names, against that file's folder."""
    return str(PurePosixPath(path).parent / other)


def postgresql(root: Root, path: str) -> dict[str, Placed]:
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
                reading.found[key] = Placed(key, value if key == "data_directory" else shown_value(value), where)

    read(path)
    data = reading.found.get("data_directory")
    read(f"{data.value if data is not None else PurePosixPath(path).parent}/postgresql.auto.conf")
    return reading.found


def mysql(root: Root, paths: Iterable[str]) -> dict[str, Placed]:
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
                name = key.strip().replace("-", "_").lower()
                if name in _MYSQL:
                    reading.keep(name, value.strip() if equals else "ON", where)

    for path in paths:
        read(path)
    return reading.found


def _rest(text: str) -> str:
    return text.partition(" ")[2].strip()


def redis(root: Root, path: str) -> dict[str, Placed]:
    """redis.conf or valkey.conf, with include."""
    reading = _Reading(root)

    def read(file: str, depth: int = 0) -> None:
        for text, where in reading.lines(file, depth):
            said = words(text)
            if len(said) > 1 and (key := said[0].lower()) in _REDIS:
                if key == "include":
                    read(_beside(file, said[1]), depth + 1)
                else:
                    reading.keep(key, said[1], where)

    read(path)
    return reading.found


def memcached(root: Root, path: str) -> list[str]:
    """The options in Debian's /etc/memcached.conf, one a line, or in OPTIONS= of Red Hat's /etc/sysconfig/memcached."""
    found: list[str] = []
    for text, _ in _Reading(root).lines(path, 0):
        if text.startswith("-"):
            found += words(text)
        elif text.startswith("OPTIONS="):
            found += " ".join(words(text.removeprefix("OPTIONS="))).split()
    return found


def mongodb(root: Root, path: str) -> dict[str, Placed]:
    """mongod.conf, whose known keys stand on lines of their own."""
    reading = _Reading(root)
    for text, where in reading.lines(path, 0):
        match = _YAML.fullmatch(text)
        if match is not None and match[1] in _MONGODB:
            reading.keep(match[1], match[2], where)
    return reading.found
