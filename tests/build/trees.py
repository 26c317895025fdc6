"""Hosts as folders: /sys, /proc, /etc and /usr of a machine, as `hugewise audit --root` reads them."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hugewise.host.ledger import JournalOpened, JournalRecord, PoolGranted, PoolIntent

KERNEL = "6.18.0-test"
MACHINE_ID = "0123456789abcdef0123456789abcdef"
_ENABLED = ("always", "inherit", "madvise", "never")
_TOP = ("always", "madvise", "never")
_DEFRAG = ("always", "defer", "defer+madvise", "madvise", "never")
_JOURNAL = msgspec.json.Encoder()
_LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"


def chosen(words: Sequence[str], value: str) -> str:
    """As sysfs shows a choice."""
    return " ".join(f"[{word}]" if word == value else word for word in words) + "\n"


class Tree:
    """A host below `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def at(self, path: str) -> Path:
        return self.path / path.lstrip("/")

    def put(self, path: str, text: str | bytes, mode: int = 0o644) -> None:
        """A file with the folders above it."""
        place = self.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
        place.chmod(mode)

    def link(self, path: str, target: str) -> None:
        place = self.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(target)

    def knob(self, name: str, value: str) -> None:
        """A knob below transparent_hugepage: a choice where it is one."""
        words = _DEFRAG if name == "defrag" else _TOP if name == "enabled" else _ENABLED
        choice = name == "defrag" or name.endswith("enabled")
        self.put(f"/sys/kernel/mm/transparent_hugepage/{name}", chosen(words, value) if choice else f"{value}\n")

    def run(self, pages: int, *records: JournalRecord, kib: int = 2048, before: int = 0, boot: str = "b") -> None:
        """The journal of a run of hugewise that has added so many pages to a pool that had `before`."""
        path = f"/sys/devices/system/node/node0/hugepages/hugepages-{kib}kB/nr_hugepages"
        begun: tuple[JournalRecord, ...] = (
            JournalOpened(boot, 77, 4242, "demo"),
            PoolIntent({path: before}, before + pages),
            PoolGranted({path: pages}),
        )
        self.put("/proc/sys/kernel/random/boot_id", "b\n")
        self.put(
            "/var/lib/hugewise/journal.jsonl", b"".join(_JOURNAL.encode(one) + b"\n" for one in (*begun, *records))
        )

    def pool(
        self, kib: int, total: int, *, free: int = 0, reserved: int = 0, surplus: int = 0, overcommit: int = 0
    ) -> None:
        folder = f"/sys/kernel/mm/hugepages/hugepages-{kib}kB"
        for name, value in (
            ("nr", total),
            ("free", free),
            ("resv", reserved),
            ("surplus", surplus),
            ("nr_overcommit", overcommit),
        ):
            self.put(f"{folder}/{name}_hugepages", f"{value}\n")

    def boot(self, words: str) -> None:
        self.put("/proc/cmdline", f"BOOT_IMAGE=/vmlinuz root=UUID=1 quiet {words}\n")

    def service(self, name: str, *lines: str) -> None:
        """A unit of the administrator's."""
        body = "\n".join(("[Unit]", "Description=a service", "[Service]", *lines))
        self.put(f"/etc/systemd/system/{name}.service", f"{body}\n")

    def glibc(self, version: str, path: str = _LIBC) -> None:
        self.put(path, b"\x7fELF...\0GNU C Library (Debian) stable release version " + version.encode() + b".\n\0")

    def systemd(self, version: int) -> None:
        for old in self.at("/usr/lib/systemd").glob("libsystemd-shared-*"):
            old.unlink()
        self.put(f"/usr/lib/systemd/libsystemd-shared-{version}.so", b"")

    def program(self, path: str, *, static: bool = False, mode: int = 0o755) -> None:
        """An ELF file of 64 bits, with an interpreter if it is not static."""
        head = struct.pack("<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
        kinds = (1, 1 if static else 3)
        self.put(path, head + b"".join(struct.pack("<I4xQ16xQ16x", kind, 1, 3) for kind in kinds), mode)

    def process(
        self,
        pid: int,
        name: str,
        *,
        exe: str | None = None,
        argv: Sequence[str] | None = None,
        environ: Mapping[str, str] | None = None,
        unit: str | None = None,
        thp: str = "1",
        rss_kib: int = 100_000,
        secure: bool = False,
        static: bool = False,
        maps: Sequence[str] = ("/usr/lib/x86_64-linux-gnu/libc.so.6",),
        group: str | None = None,
        parent: int = 1,
    ) -> None:
        """A process. `maps`: what it has mapped; one that ends with `=BYTES` is shared and of that size."""
        folder = f"/proc/{pid}"
        program = exe or f"/usr/bin/{name}"
        self.put(
            f"{folder}/status",
            f"Name:\t{name}\nUmask:\t0022\nPid:\t{pid}\nPPid:\t{parent}\nUid:\t0\t0\t0\t0\n"
            f"VmRSS:\t{rss_kib:8} kB\nTHP_enabled:\t{thp}\n",
        )
        self.put(f"{folder}/cmdline", "\0".join(argv or [program]) + "\0")
        self.put(f"{folder}/environ", "".join(f"{key}={value}\0" for key, value in (environ or {}).items()))
        self.put(f"{folder}/cgroup", f"0::{group or (f'/system.slice/{unit}' if unit else '/')}\n")
        words = {33: 1 << 40, 6: 4096, 7: 0 if static else 0x7F0000000000, 23: int(secure), 0: 0}
        self.put(f"{folder}/auxv", b"".join(struct.pack("<QQ", key, value) for key, value in words.items()))
        lines, address = [], 0x5000_0000_0000
        for each in (program, *(() if static else maps)):
            file, _, size = each.partition("=")
            length = int(size or "4096")
            kind = "rw-s" if size else "r-xp"
            lines.append(f"{address:x}-{address + length:x} {kind} 00000000 00:01 7 {file}\n")
            address += length
        self.put(f"{folder}/maps", "".join(lines))
        self.link(f"{folder}/exe", program)


def healthy(path: Path) -> Tree:
    """A host on which no rule finds anything: the kernel's own settings, a service, no pool."""
    tree = Tree(path)
    tree.put("/etc/machine-id", f"{MACHINE_ID}\n")
    tree.put("/proc/sys/kernel/osrelease", f"{KERNEL}\n")
    tree.put("/proc/sys/kernel/arch", "x86_64\n")
    tree.put("/proc/meminfo", "MemTotal:  8000000 kB\nSwapTotal:       0 kB\n")
    tree.put("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n")
    tree.put(f"/boot/config-{KERNEL}", "CONFIG_X=y\nCONFIG_TRANSPARENT_HUGEPAGE_MADVISE=y\n")
    tree.boot("")
    for name, value in (
        ("enabled", "madvise"),
        ("defrag", "madvise"),
        ("hpage_pmd_size", "2097152"),
        ("shrink_underused", "0"),
        ("khugepaged/max_ptes_none", "511"),
        ("khugepaged/pages_to_scan", "4096"),
        ("hugepages-64kB/enabled", "never"),
        ("hugepages-2048kB/enabled", "inherit"),
    ):
        tree.knob(name, value)
    tree.pool(2048, 0)
    tree.pool(1048576, 0)
    tree.put("/sys/fs/cgroup/cgroup.procs", "")
    tree.glibc("2.36")
    tree.systemd(260)
    tree.program("/usr/bin/app")
    tree.service("app", "ExecStart=/usr/bin/app --listen 1", 'Environment="PATH=/usr/bin" HOME=/')
    tree.process(100, "app", unit="app.service")
    tree.process(1, "systemd", exe="/usr/lib/systemd/systemd", parent=0)
    return tree
