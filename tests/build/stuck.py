"""A process whose map of memory is held for as long as a test wants, so that whoever reads it waits.

Somebody looks into it (/proc/PID/mem) at a page of a file whose server does not answer: that look holds the lock of its
map for reading, and waits. The process itself asks for the lock to change its map, and waits behind it; so does who
comes then. The server is a FUSE of a few lines, in a thread of the test; when it goes, all of them go on.

Source: include/uapi/linux/fuse.h of Linux.
"""

import ctypes
import os
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.requirements import need, need_root

_IN, _OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _INIT, _INTERRUPT, _FORGETS = 1, 2, 3, 14, 15, 26, 36, 42
_NO_REPLY = (_FORGET, _READ, _INTERRUPT, _FORGETS)
_SIZE = 4096
_MNT_FORCE, _MNT_DETACH = 1, 2
_LIBC = ctypes.CDLL(None, use_errno=True)

_HELD = r"""
import ctypes, mmap, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
at = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE, os.open(sys.argv[1], os.O_RDONLY), 0)
print(f"{at:x}", flush=True)
sys.stdin.readline()
while True:
    mmap.mmap(-1, 1 << 20).close()
    time.sleep(0.001)
"""
_LOOKING = r"""
import os, sys
os.pread(os.open(f"/proc/{sys.argv[1]}/mem", os.O_RDONLY), 16, int(sys.argv[2], 16))
"""


def _attributes(node: int) -> bytes:
    mode = (stat.S_IFDIR | 0o755) if node == 1 else (stat.S_IFREG | 0o644)
    return struct.pack("<6Q10I", node, _SIZE, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _serve(device: int, asked_to_read: threading.Event) -> None:
    """One file, which can be opened, and is never read."""
    with suppress(OSError):
        while True:
            asked = os.read(device, 1 << 20)
            _, opcode, unique, node, *_ = _IN.unpack_from(asked)
            if opcode == _READ:
                asked_to_read.set()
            if opcode in _NO_REPLY:
                continue
            answer, error = b"", 0
            match opcode:
                case _ if opcode == _INIT:
                    answer = struct.pack("<IIIIHHIIHHI", 7, 31, 0, 0, 12, 9, 4096, 1, 1, 0, 0).ljust(64, b"\0")
                case _ if opcode == _LOOKUP:
                    answer = struct.pack("<QQQQII", 2, 0, 60, 60, 0, 0) + _attributes(2)
                case _ if opcode == _GETATTR:
                    answer = struct.pack("<QII", 60, 0, 0) + _attributes(node)
                case _ if opcode == _OPEN:
                    answer = struct.pack("<QIi", 0, 0, 0)
                case _:
                    error = -38  # ENOSYS
            os.write(device, _OUT.pack(_OUT.size + len(answer), error, unique) + answer)


def _waits(pid: int) -> bool:
    """Whether a process is in a wait that nothing interrupts."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"D"]


@contextmanager
def stuck() -> Iterator[int]:
    """The process; it and who looks into it are gone afterwards."""
    need_root()
    need(Path("/dev/fuse").exists(), "/dev/fuse")
    folder = tempfile.mkdtemp(prefix="hw-stuck-", dir="/tmp")
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    told = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if _LIBC.mount(b"hw", folder.encode(), b"fuse", 0, told):
        os.close(device)
        Path(folder).rmdir()
        need(False, f"a FUSE of one's own ({os.strerror(ctypes.get_errno())})")
    asked = threading.Event()
    server = threading.Thread(target=_serve, args=(device, asked), daemon=True)
    server.start()
    held = looking = None
    try:
        held = subprocess.Popen(
            [sys.executable, "-IS", "-c", _HELD, f"{folder}/file"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert held.stdin is not None and held.stdout is not None
        at = held.stdout.readline().decode().strip()
        looking = subprocess.Popen([sys.executable, "-IS", "-c", _LOOKING, str(held.pid), at])
        need(asked.wait(60), "a look into a process that waits for a page")
        held.stdin.write(b"go\n")
        held.stdin.flush()
        _await(held.pid)
        yield held.pid
    finally:
        for each in (held, looking):
            if each is not None:
                each.kill()
        # By force: the connection is aborted, so whoever waits for the server goes on, and its own reading ends, too.
        # (To close the device alone does neither while a read of it is under way.)
        _LIBC.umount2(folder.encode(), _MNT_FORCE | _MNT_DETACH)
        server.join(60)
        os.close(device)
        for each in (held, looking):
            if each is not None:
                each.wait(60)
                for pipe in (each.stdin, each.stdout):
                    if pipe is not None:
                        pipe.close()
        Path(folder).rmdir()


def _await(pid: int) -> None:
    end = time.monotonic() + 60  # a kernel that lets go of the map meanwhile never comes to it
    while not _waits(pid):
        need(time.monotonic() < end, "a map of memory that is held by who waits for a page")
        time.sleep(0.01)
