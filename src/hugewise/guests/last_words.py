"""What a guest, or its QEMU, said last, and how QEMU ended: the reason of an attempt that it took with it."""

from __future__ import annotations

import os
import re
import select
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hugewise.errors import MachineError
from hugewise.machine import probe
from hugewise.machine.foreign import plain
from hugewise.machine.serving import Serving

__all__ = ["QemuEnd", "emulator_at_fault", "ended", "error", "oom_kills", "plain_lines"]

_LAST_LINES = 8
_MOST_LINES = 1000
_TAIL_BYTES = 1 << 16
_TO_LEAVE_S = 1.0
_KILLED = 9
_HALF_PATCHED = re.compile(r"\bint3: 0000 \[#")  # since Linux 6.10 behind "Oops: "
_CAUSE = re.compile(rf"Kernel panic|Out of memory|Oops|BUG:|{_HALF_PATCHED.pattern}")

# What terminals obey: CSI sequences, OSC sequences, other escapes; then what is left of controls.
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class QemuEnd(NamedTuple):
    """How a QEMU ended. `said`: in words, empty where it ended as it should; `cure`: where one is known."""

    said: str
    cure: str | None = None


def ended(serving: Serving, kills_before: int | None = None) -> QemuEnd | None:
    """How it ended, waiting a moment for its launcher to say so; None where it lives, or nobody knows.

    `kills_before`: `oom_kills` when it was started. A process that the kernel kills for want of memory ends by the
    signal that anybody may send; that the kernel has killed some meanwhile is what tells them apart.
    """
    select.select([serving.launcher], [], [], _TO_LEAVE_S)
    end = next((event for event in serving.events() if isinstance(event, probe.Exit)), None)
    if end is None:
        return None
    if end.exceeded is not None:
        return QemuEnd(f"was ended: {end.exceeded}")
    if end.signal == _KILLED:
        kills = oom_kills()
        if kills is not None and kills_before is not None and kills > kills_before:
            return QemuEnd(
                f"was killed (signal 9), as {kills - kills_before} process(es) were by this host's kernel meanwhile,"
                " for want of memory",
                "give the guests less memory, or this host (or the limit that it runs under) more: see dmesg",
            )
        return QemuEnd("was killed (signal 9): somebody ended it, and no want of memory did (see dmesg)")
    if end.signal is not None:
        return QemuEnd(f"ended by signal {end.signal}")
    return QemuEnd("" if end.code == 0 else f"failed (exit status {end.code})")


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """How many processes the kernel has killed for want of memory since it booted, its cgroups' limits included; None
    where it does not count them (proc(5): oom_kill, since Linux 4.13).
    """
    with suppress(OSError, ValueError):
        for line in vmstat.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def emulator_at_fault(outputs: Path) -> bool:
    """Whether an emulated guest with several processors was brought down by the emulator.

    Linux patches its own instructions by way of a breakpoint (arch/x86/kernel/alternative.c, text_poke_bp_batch).
    A processor that TCG lets run into one after all have acknowledged that it is gone finds nobody to handle it, and
    says "Oops: int3"; seen once in some hundred boots. Where that was not what the kernel panicked of, it is not.
    """
    console = _last_lines(outputs / "console.txt", _MOST_LINES)
    causes = [line for line in console if _CAUSE.search(line)]
    panic = next((line for line in causes if "Kernel panic" in line), "")
    return bool(causes) and _HALF_PATCHED.search(causes[0]) is not None and "Fatal exception" in panic


def error(message: str, outputs: Path, end: QemuEnd | None = None) -> MachineError:
    """The message, how QEMU ended, its own last words and the console's. `outputs`: the folder that has them."""
    said = [f"QEMU: {line}" for line in _last_lines(outputs / "qemu.stderr", 3)]
    console = _last_lines(outputs / "console.txt", _MOST_LINES)
    # A panic is followed by more lines than are told.
    causes = [line for line in console[:-_LAST_LINES] if _CAUSE.search(line)]
    said += [f"console: {line}" for line in (*causes[-2:], *console[-_LAST_LINES:])]
    if end is not None and end.said:
        message += f"; QEMU {end.said}"
    return MachineError("\n  ".join([message, *(said or ["it said nothing"])]), hint=None if end is None else end.cure)


def plain_lines(text: str) -> list[str]:
    """The lines of what a console was sent, without escape codes, controls and empty lines."""
    cleaned = _ESCAPE.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")
    return [line for line in (plain(_CONTROL.sub("", line)).rstrip() for line in cleaned.split("\n")) if line]


def _last_lines(file: Path, count: int) -> list[str]:
    with suppress(OSError), file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return plain_lines(opened.read().decode(errors="replace"))[-count:]
    return []
