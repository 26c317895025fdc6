"""From the files of a host to its facts. Only this host itself is asked what no file says."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from hugewise.audit import boot_files, machines, running, servers, sysfs, unit_files
from hugewise.audit.facts import HostFacts
from hugewise.audit.own import own_run
from hugewise.audit.root import Root
from hugewise.errors import UserError
from hugewise.machine.fingerprint import machine_id
from hugewise.model.pages import HUGETLB, THP

__all__ = ["collect", "except_advised"]

_PR_SET_THP_DISABLE, _PR_GET_THP_DISABLE, _EXCEPT_ADVISED = 41, 42, 2
_LIBC_PLACES = ("/usr/lib64", "/lib64", "/usr/lib", "/lib")
_MOST_LIBC = 16 << 20
_GLIBC = re.compile(rb"release version (\d{1,3})\.(\d{1,3})")
_SYSTEMD = re.compile(r"libsystemd-shared-(\d{2,4})\D.*")
_LIBRARIES = ("/usr/lib/systemd", "/lib/systemd", "/usr/lib64/systemd")
_MULTIARCH = re.compile(r"[a-z0-9_]{1,16}-linux-gnu\w{0,10}")
_MOST_PRELOADS = 100


def collect(root: Root, instances: Iterable[str] = ()) -> HostFacts:
    """All that can be read; `instances` are services of templates that are wanted though they do not run.

    Raises UserError where there is no host.
    """
    if root.listed("/proc") is None and root.listed("/sys") is None and root.listed("/etc") is None:
        raise UserError(
            f"--root {root.folder}: it holds no host: no /etc, no /proc, no /sys",
            hint="name the folder that has them, or leave it out",
        )
    here = root.folder == Path("/")
    kernel = (root.text("/proc/sys/kernel/osrelease", 256) or "").strip()
    thp = sysfs.thp(root)
    run, added = own_run(root)
    pools = sysfs.pools(root, added)
    hugetlb_groups, memory_groups = sysfs.groups(root)
    paths = unit_files.services(root)
    others = unit_files.aliases(root, paths)
    seen = running.processes(root)
    named = {*instances, *(each.process.unit for each in seen if each.process.unit)} - paths.keys() - others.keys()
    also: dict[str, list[str]] = {}
    for other, real in others.items():
        also.setdefault(real, []).append(other)
    loaded = [
        unit_files.load(root, name, path, also.get(name, ()))
        for name, path in sorted(paths.items())
        if name not in others
    ]
    for name in sorted(named):
        template = re.sub(r"@[^@]*(?=\.service$)", "@", name)
        if template in paths:
            loaded.append(unit_files.load(root, name, paths[template]))
    known = [f"{THP}/{key}" for key in thp]
    known += [f"{HUGETLB}/hugepages-{pool.size >> 10}kB/nr_hugepages" for pool in pools]
    profile = boot_files.tuned(root, known)
    found = machines.machines(root)
    return HostFacts(
        kernel=kernel,
        machine=machine_id(root),
        architecture=(root.text("/proc/sys/kernel/arch", 256) or (os.uname().machine if here else "")).strip(),
        base_page=os.sysconf("SC_PAGE_SIZE") if here else 4096,
        systemd=_systemd(root),
        glibc=_glibc(root),
        except_advised=except_advised(root),
        config=sysfs.kernel_config(root, kernel),
        collapses=sysfs.collapses(root),
        reported=sysfs.reported(root),
        swap=_swap(root),
        thp=thp,
        pools=pools,
        hugetlb_groups=hugetlb_groups,
        memory_groups=memory_groups,
        boot=sysfs.boot_words(root),
        sysctl=boot_files.sysctl(root),
        tmpfiles=boot_files.tmpfiles(root, known),
        tuned=profile[0],
        scripts=boot_files.scripts(root),
        profile=profile[1],
        lost_profiles=profile[2],
        units=tuple(each.config for each in loaded),
        aliases=others,
        defaults=unit_files.defaults(root),
        processes=tuple(each.process for each in seen),
        servers=servers.servers(root, seen, loaded),
        preloads=_preloads(root, loaded),
        run=run,
        domains=found.domains,
        running=found.running,
        kvm=found.kvm,
        ksm=found.ksm,
        unread=root.unread(),
    )


def except_advised(root: Root) -> bool | None:
    """Whether prctl takes PR_THP_DISABLE_EXCEPT_ADVISED: tried on this process, and taken back at once.

    None for another host, and where THP is disabled for this process already: it would have to be set again.
    """
    if root.folder != Path("/"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_GET_THP_DISABLE, 0, 0, 0, 0) != 0:
        return None
    taken = bool(prctl(_PR_SET_THP_DISABLE, 1, _EXCEPT_ADVISED, 0, 0) == 0)
    if taken:
        prctl(_PR_SET_THP_DISABLE, 0, 0, 0, 0)
    return taken


def _multiarch(root: Root, top: str) -> list[str]:
    return [f"{top}/{name}" for name in root.names(top) if _MULTIARCH.fullmatch(name)]


def _glibc(root: Root) -> tuple[int, int] | None:
    """Of the C library's file: it says its version in words."""
    for folder in (*_multiarch(root, "/usr/lib"), *_multiarch(root, "/lib"), *_LIBC_PLACES):
        data = root.data(f"{folder}/libc.so.6", _MOST_LIBC)
        if data is not None and (match := _GLIBC.search(data)) is not None:
            return int(match[1]), int(match[2])
    return None


def _systemd(root: Root) -> int | None:
    """Of the name of systemd's own library."""
    for folder in (*_LIBRARIES, *(f"{each}/systemd" for each in _multiarch(root, "/usr/lib"))):
        for name in root.names(folder):
            if match := _SYSTEMD.fullmatch(name):
                return int(match[1])
    return None


def _swap(root: Root) -> int:
    """Bytes of swap."""
    match = re.search(r"^SwapTotal:\s{1,20}(\d{1,15}) kB$", root.text("/proc/meminfo", 1 << 16) or "", re.MULTILINE)
    return int(match[1]) << 10 if match else 0


def _preloads(root: Root, loaded: list[unit_files.LoadedUnit]) -> dict[str, bool]:
    """Whether the files that units preload are there; those without a path are the loader's affair."""
    said = [one.value for unit in loaded for one in unit.config.environment if one.key == "LD_PRELOAD"]
    files = [each for value in said for each in re.split(r"[ :]+", value) if PurePosixPath(each).is_absolute()]
    plain = [each for each in files if "$" not in each and "%" not in each]
    found = {each: root.there(each) for each in plain[:_MOST_PRELOADS]}
    return {each: is_there for each, is_there in found.items() if is_there is not None}
