"""QEMUs whose guests stand still before their first instruction: nothing boots. All that QEMU does first is done."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.requirements import need_program


@contextmanager
def qemu(*words: str, mib: int = 256) -> Iterator[int]:
    """The process of one with so much memory, when its monitor answers: it has its memory and its disks then."""
    program = need_program("qemu-system-x86_64", "qemu-system-x86")
    argv = [program, "-S", "-nodefaults", "-display", "none", "-m", f"{mib}M", *words, "-qmp", "stdio"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b'{"execute": "qmp_capabilities"}\n')
            process.stdin.flush()
            # The greeting comes before there is a machine; the answer after it.
            assert b"QMP" in process.stdout.readline()
            assert b"return" in process.stdout.readline()
            yield process.pid
        finally:
            process.kill()
