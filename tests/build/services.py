"""Servers of a few lines of Python with a load, for the workload `service`: they do what their words say."""

import sys
from typing import Any

SERVER = r"""
import os, socket, sys, time
words, port = sys.argv[2:], int(sys.argv[1])
if "early" in words:
    print("\x1b]0;owned\x07\x1b[31mno room for me", file=sys.stderr)
    sys.exit(9)
if "daemon" in words and os.fork():
    os._exit(0)
if "daemon" in words:
    os.setsid()
if "silent" in words:
    print("still thinking", flush=True)
    time.sleep(60)
held = bytearray(b"x") * (int(os.environ.get("HELD", "40")) << 20)
if "takes" in words:  # pages of a pool, where there are any
    import mmap
    try:
        pooled = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x40000)
    except OSError:
        pooled = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    for at in range(0, len(pooled), 4096):
        pooled[at] = 1
if "children" in words and os.fork() == 0:
    own = bytearray(b"y") * (24 << 20)
    time.sleep(600)
if "saves" in words and (saving := os.fork()) == 0:
    os._exit(0)
if "saves" in words:
    os.waitpid(saving, 0)
listening = socket.create_server(("127.0.0.1", port))
print("ready at", port, flush=True)
rounds = int(os.environ.get("ROUNDS", "1"))
planted = "thp" in os.environ.get("HUGEWISE_LAYOUT", "") if "laid" in words else "GLIBC_TUNABLES" in os.environ
if planted:  # an effect
    rounds = max(1, rounds // 3)
while True:
    one, _ = listening.accept()
    with one:
        while one.recv(1):
            if "mortal" in words:
                sys.exit(7)
            if "lazy" in words and "GLIBC_TUNABLES" in os.environ:  # an arm that does no work
                one.sendall(b"n")
                continue
            for _ in range(rounds):
                sum(range(20_000))
            one.sendall(b"y")
"""

LOAD = r"""
import socket, sys
count, done = int(sys.argv[2]), 0
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as asked:
    for _ in range(count):
        asked.sendall(b"x")
        answer = asked.recv(1)
        assert answer in (b"y", b"n")
        done += answer == b"y"
print("\x1b[2Jdid", done, "operations")
sys.exit(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
"""

_PYTHON = (sys.executable, "-IS", "-c")


def service(*words: str, asked: int = 50, status: int = 0, **parameters: Any) -> dict[str, Any]:
    """The parameters of a service whose server is told these words, and asked so often."""
    return {
        "server": [*_PYTHON, SERVER, "{port}", *words],
        "load": [*_PYTHON, LOAD, "{port}", str(asked), *([str(status)] if status else [])],
        "stop_within": "60s",
        **parameters,
    }
