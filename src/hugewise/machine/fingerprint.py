"""The machine in one JSON-able dictionary: what a reader needs to judge whether a result carries over to theirs.

What is absent or unreadable is None: nothing is guessed. The machine's own id never appears, only a keyed hash of it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from hugewise.machine import proc
from hugewise.machine.noise import CPU, FREQUENCY_FILES
from hugewise.model.host import Host, text_of
from hugewise.model.pages import PageSizes
from hugewise.quantity import parse_cpus

_NODE = "/sys/devices/system/node"
_DMI = "/sys/class/dmi/id"
_CLOCK = "/sys/devices/system/clocksource/clocksource0"
_ZONE = re.compile(r"^Node (\d{1,6}), zone ", re.MULTILINE | re.ASCII)
_PRESENT = re.compile(r"^ +present +(\d{1,15})$", re.MULTILINE | re.ASCII)


def fingerprint(host: Host) -> dict[str, Any]:
    """Return the facts of `host`."""
    clocks = text_of(host, f"{_CLOCK}/available_clocksource")
    sizes = PageSizes.discover(host)
    return {
        "name": host.name,
        "machine": machine_id(host),
        "boot_id": text_of(host, "/proc/sys/kernel/random/boot_id"),
        "kernel": {
            "system": text_of(host, "/proc/sys/kernel/ostype"),
            "release": text_of(host, "/proc/sys/kernel/osrelease"),
            "version": text_of(host, "/proc/sys/kernel/version"),
            "architecture": text_of(host, "/proc/sys/kernel/arch") or os.uname().machine,
            "command_line": text_of(host, "/proc/cmdline"),
        },
        "distribution": _distribution(host),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "python": platform.python_version(),
        "cpu": _cpu(host),
        "pages": msgspec.json.decode(msgspec.json.encode(sizes)),
        "memory": _memory(host, sizes.base),
        "virtualisation": _virtualisation(host),
        "clock_source": {
            "current": text_of(host, f"{_CLOCK}/current_clocksource"),
            "available": None if clocks is None else clocks.split(),
        },
        "frequency": _frequency(host),
        "mitigations": _folder(host, f"{CPU}/vulnerabilities"),
    }


def machine_id(host: Host) -> str | None:
    """Return an id that is stable on this machine, and does not reveal /etc/machine-id (machine-id(5))."""
    raw = text_of(host, "/etc/machine-id")
    if not raw or raw == "uninitialized":
        return None
    return hmac.new(raw.encode(), b"hugewise", hashlib.sha256).hexdigest()[:16]


def _distribution(host: Host) -> str | None:
    text = text_of(host, "/etc/os-release") or text_of(host, "/usr/lib/os-release") or ""
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', text, re.MULTILINE)
    return match[1] if match else None


def _cpu(host: Host) -> dict[str, Any]:
    info = _cpuinfo(text_of(host, "/proc/cpuinfo") or "")
    listed = text_of(host, f"{CPU}/online")
    online = list(parse_cpus(listed)) if listed else None
    packages = {text_of(host, f"{CPU}/cpu{number}/topology/physical_package_id") for number in online or ()}
    smt = text_of(host, f"{CPU}/smt/active")
    return {
        "vendor": info.get("vendor_id") or info.get("CPU implementer"),
        "model": info.get("model name"),
        "family": info.get("cpu family"),
        "model_number": info.get("model") or info.get("CPU part"),
        "stepping": info.get("stepping") or info.get("CPU revision"),
        "microcode": info.get("microcode"),
        "count": None if online is None else len(online),
        "online": listed,
        "isolated": text_of(host, f"{CPU}/isolated") or None,
        "sockets": len(packages) if packages and None not in packages else None,
        "smt": None if smt is None else smt == "1",
        "address_bits": info.get("address sizes"),
    }


def _memory(host: Host, base: int) -> dict[str, Any]:
    info, present = proc.meminfo(host), _present(text_of(host, "/proc/zoneinfo") or "", base)
    nodes = [name for name in host.names(_NODE) if re.fullmatch(r"node\d+", name)]
    return {
        "total_bytes": info.get("MemTotal"),
        "swap_bytes": info.get("SwapTotal"),
        "zswap": text_of(host, "/sys/module/zswap/parameters/enabled"),
        "overcommit": text_of(host, "/proc/sys/vm/overcommit_memory"),
        "swappiness": text_of(host, "/proc/sys/vm/swappiness"),
        "numa_balancing": text_of(host, "/proc/sys/kernel/numa_balancing"),
        "aslr": text_of(host, "/proc/sys/kernel/randomize_va_space"),
        "nodes": {
            name: {
                "cpus": text_of(host, f"{_NODE}/{name}/cpulist"),
                "present_bytes": present.get(name),
            }
            for name in nodes
        }
        or None,
    }


def _present(zoneinfo: str, base: int) -> dict[str, int]:
    # A node's MemTotal is what the kernel has begun to use, which grows between readings where memory is initialised on
    # first use; `present` (proc(5)) does not.
    found: dict[str, int] = {}
    zones = list(_ZONE.finditer(zoneinfo))
    for zone, end in zip(zones, [*(after.start() for after in zones[1:]), len(zoneinfo)], strict=False):
        if (pages := _PRESENT.search(zoneinfo, zone.end(), end)) is not None:
            found[f"node{zone[1]}"] = found.get(f"node{zone[1]}", 0) + int(pages[1]) * base
    return found


def _virtualisation(host: Host) -> dict[str, Any]:
    # `hypervisor` is CPUID's flag, which x86 alone has.
    flags = re.search(r"^flags\s*:(.*)$", text_of(host, "/proc/cpuinfo") or "", re.MULTILINE)
    return {
        "hypervisor": "hypervisor" in flags[1].split() if flags else None,
        "type": text_of(host, "/sys/hypervisor/type"),
        "vendor": text_of(host, f"{_DMI}/sys_vendor"),
        "product": text_of(host, f"{_DMI}/product_name"),
    }


def _frequency(host: Host) -> dict[str, Any] | None:
    base = f"{CPU}/cpufreq"
    policies: list[dict[str, str | None]] = []
    for name in host.names(base):
        if name.startswith("policy"):
            policy = {key: text_of(host, f"{base}/{name}/{key}") for key in FREQUENCY_FILES}
            if policy not in policies:
                policies.append(policy)
    boost, no_turbo = text_of(host, f"{base}/boost"), text_of(host, f"{CPU}/intel_pstate/no_turbo")
    if not policies and boost is None and no_turbo is None:
        return None
    turbo = boost == "1" if boost is not None else None if no_turbo is None else no_turbo == "0"
    return {"policies": policies, "boost": turbo}


def _folder(host: Host, path: str) -> dict[str, str | None] | None:
    return {name: text_of(host, f"{path}/{name}") for name in host.names(path)} or None


def _cpuinfo(text: str) -> Mapping[str, str]:
    lines = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {key.strip(): value.strip() for key, colon, value in lines if colon}
