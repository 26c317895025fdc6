"""What sets pages when a host boots, from files: sysctl.d, tmpfiles.d, profiles of tuned.

Sources: sysctl.d(5), tmpfiles.d(5), tuned.conf(5).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator

from hugewise.audit.facts import Placed
from hugewise.audit.known import shown_value
from hugewise.audit.root import Root
from hugewise.audit.unit_text import directives, words

__all__ = ["scripts", "sysctl", "tmpfiles", "tuned"]

_FOLDERS = ("/etc/{}", "/run/{}", "/usr/local/lib/{}", "/usr/lib/{}", "/lib/{}")
_KEY = re.compile(r"vm\.(?:nr_hugepages(?:_mempolicy)?|nr_overcommit_hugepages|hugetlb_shm_group)|.*huge_?page.*")
_PAGES = re.compile(
    r"/sys/kernel/mm/(?:transparent_hugepage|hugepages)/\S{1,200}|/sys/fs/cgroup/(?:\S{0,200}/)?[^/\s]{0,60}huge[^/\s]{1,60}"
    r"|/sys/devices/system/node/[\w*?\[\]-]{1,40}/hugepages/\S{1,100}"
)
_PATHS = re.compile(r"(?:/sys/kernel/mm/|/sys/devices/system/node/)[\w./*?\[\]-]{1,200}|\bvm\.nr_hugepages\b")
_SYSCTL = "/proc/sys/"
_MOST_INCLUDED = 16
_VM = {"transparent_hugepages": "enabled", "transparent_hugepage": "enabled", "transparent_hugepage.defrag": "defrag"}
_THP = "/sys/kernel/mm/transparent_hugepage"


def _files(root: Root, kind: str) -> list[str]:
    """The files of a kind in the order in which they are read; of one name the one that decides."""
    chosen: dict[str, str] = {}
    for folder in (each.format(kind) for each in _FOLDERS):
        for name in root.names(folder):
            if name.endswith(".conf"):
                chosen.setdefault(name, f"{folder}/{name}")
    return [path for _, path in sorted(chosen.items()) if root.target(path) != "/dev/null"]


def sysctl(root: Root) -> dict[str, Placed]:
    """Sysctls about huge pages by name, the last word of all files; /etc/sysctl.conf is read last (procps)."""
    found = {}
    for path in dict.fromkeys([*_files(root, "sysctl.d"), "/etc/sysctl.conf"]):
        for line, text in _lines(root.text(path)):
            key, equals, value = text.partition("=")
            name = key.strip().removeprefix("-").strip()
            name = name.replace("/", ".") if "/" in name and "." not in name.partition("/")[0] else name
            if equals and _KEY.fullmatch(name):
                found[name] = Placed(shown_value(name), shown_value(value.strip()), f"{path}:{line}")
    return found


def tmpfiles(root: Root, known: Iterable[str]) -> dict[str, Placed]:
    """What lines of type `w` write below /sys/kernel/mm, by path; `known` are those that a pattern may mean.

    A sysctl that is so written is here by its path below /proc/sys.
    """
    paths = list(known)
    found = {}
    for path in _files(root, "tmpfiles.d"):
        for line, text in _lines(root.text(path)):
            fields = words(text)
            if len(fields) < 7 or not fields[0].startswith("w"):
                continue
            wanted, value = fields[1], shown_value(" ".join(fields[6:]))
            huge = wanted.startswith(_SYSCTL) and _KEY.fullmatch(wanted.removeprefix(_SYSCTL).replace("/", "."))
            if not huge and not _PAGES.fullmatch(wanted):
                continue
            for each in [one for one in paths if fnmatch.fnmatchcase(one, wanted)] or [wanted]:
                found[each] = Placed(shown_value(each), value, f"{path}:{line}")
    return found


def scripts(root: Root) -> tuple[str, ...]:
    """Knobs that rc.local, /etc/sysfs.conf and files of sysfs.d write: with what is not looked at."""
    found: list[str] = []
    for path in ("/etc/rc.local", "/etc/rc.d/rc.local"):
        for _, text in _lines(root.text(path)):
            found += _PATHS.findall(text)
    more = [f"/etc/sysfs.d/{name}" for name in root.names("/etc/sysfs.d") if name.endswith(".conf")]
    for path in ("/etc/sysfs.conf", *more):
        for _, text in _lines(root.text(path)):
            found += _PATHS.findall(f"/sys/{text.lstrip('/')}")
    return tuple(dict.fromkeys(found))


def tuned(root: Root, known: Iterable[str]) -> tuple[dict[str, Placed], tuple[str, ...], tuple[str, ...]]:
    """What the active profiles of tuned set: paths and sysctls with their values; the profiles; those that are nowhere.
    `known` are the paths that a pattern may mean.

    Files of the kernel are here by their paths, sysctls by their names, words of the command line as `boot:NAME`.
    """
    active = tuple((root.text("/etc/tuned/active_profile", 4096) or "").split())[:_MOST_INCLUDED]
    found: dict[str, Placed] = {}
    lost: list[str] = []
    for name in active:
        _profile(root, name, found, lost, [])
    paths = list(known)
    for pattern in [key for key in found if "*" in key or "?" in key]:
        for each in fnmatch.filter(paths, pattern):
            found.setdefault(each, Placed(each, found[pattern].value, found[pattern].where))
        if fnmatch.filter(paths, pattern):
            del found[pattern]
    return found, tuple(map(shown_value, active)), tuple(map(shown_value, lost))


def _profile(root: Root, name: str, found: dict[str, Placed], lost: list[str], above: list[str]) -> None:
    if name in above or len(above) > _MOST_INCLUDED or re.fullmatch(r"[\w.+-]{1,100}", name) is None or name == "..":
        return
    places = [f"{top}/{name}/tuned.conf" for top in ("/etc/tuned/profiles", "/etc/tuned")]
    places += [f"{top}/{name}/tuned.conf" for top in ("/usr/lib/tuned/profiles", "/usr/lib/tuned")]
    for path in places:
        text = root.text(path)
        if text is not None:
            break
        if root.there(path) is not False:
            return  # which profile it is, is not to be seen
    else:
        lost.append(name)
        return
    read = list(directives(text))
    for each in read:
        if (each.section, each.key) == ("main", "include"):
            for included in re.split(r"[\s,;]+", each.value):
                _profile(root, included.strip("-"), found, lost, [*above, name])
    for each in read:
        value = each.value.strip("\"'")
        where = f"{path}:{each.line}"
        if "${" in value:  # a variable of the profile: what it comes to is not known here
            continue
        for key, meant in _meant(each.section, each.key, value):
            found[key] = Placed(shown_value(key), shown_value(meant), where)


def _meant(section: str, key: str, value: str) -> Iterator[tuple[str, str]]:
    """What an assignment of a profile sets."""
    if section == "vm" and key in _VM:
        yield f"{_THP}/{_VM[key]}", value
    elif (section == "sysfs" and _PAGES.fullmatch(key)) or (section == "sysctl" and _KEY.fullmatch(key)):
        yield key, value
    elif section == "bootloader" and key.startswith("cmdline"):
        for word in value.split():
            name, equals, said = word.lstrip("+").partition("=")  # `+` adds to what is inherited
            if equals and re.fullmatch(r"transparent_hugepage|hugepagesz?|default_hugepagesz", name):
                yield f"boot:{name}", said


def _lines(text: str | None) -> Iterator[tuple[int, str]]:
    for number, line in enumerate((text or "").split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith(("#", ";")):
            yield number, stripped
