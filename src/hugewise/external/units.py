"""The unit and the direction that the name of a column, or a unit, tells.

    told("latency_us")     us, lower is better         told("ops_per_s")        ops/s, higher is better
    told("us/request")     us/request, lower           told("throughput_MB_s")  MB/s, higher
    told("hit%")           no unit, not known          told("faults/s")         faults/s, not known

Direction is never guessed: a time is better lower, a rate higher, a time for each piece of work lower. A rate of what
is bad (misses, errors), and whatever is neither, has none until the user says which. A time that is no cost (uptime)
and names that could mean two things (`ops`, `ps`, `req_s`) have none either.
"""

from __future__ import annotations

import re

from hugewise.model.metric import Direction

__all__ = ["told"]

_TIMES = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "µs", "μs", "usec", "usecs", "micros", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nsec", "nsecs", "nanos", "nanosecond", "nanoseconds"), "ns"),
}
# After "per" and "/" alone: `min` is a minimum elsewhere, `h` nothing.
_PERIODS = {*_TIMES, "min", "mins", "minute", "minutes", "h", "hr", "hour", "hours", "day", "days"}
_SIZE = re.compile(r"bytes?|bits?|[kmgt]i?b(it|ps)?s?|[kmgt]?(bit|byte)s?|[kmgt]?bytes?")
_WORK = re.compile(
    r"(operation|op|request|req|query|querie|txn|transaction|event|item|iter|iteration|msg|message|packet|record|row|"
    r"token|frame|image|call|command|commit|insert|update|read|write|lookup|io|job|sample|key)s"
)
_SHORT = {"op", "req", "tx", "txn", "trans", "io", "msg"}  # of which `req_s` could be a rate or a time
_RATES = re.compile(r"[kmg]?(rps|tps|qps|iops|fps|pps|eps|cps|flops|mips)|[kmgt]i?(bit|b)?ps|bps|tpm|tpmc|nopm")
_BAD = re.compile(
    r"miss|fault|err|fail|oom|kill|crash|interrupt|irq|scan|steal|overhead|gc$|pause|throttl|growth|"
    r"stall|retr|abort|timeout|drop|loss|lost|conflict|deadlock|evict|swap|reconnect|reject|"
    r"switch|migrat|walk|shootdown|wait|cpu|idle|sleep|power|energy|cost|joule|alloc|leak|split|reclaim|compact"
)
_NO_COST = {"uptime", "idle", "mtbf", "ttl", "timestamp", "start", "started", "begin", "began", "end", "ended", "at"}
_NO_COST |= {"interval", "period", "rate", "speed", "throughput", "bandwidth", "goodput", "date", "epoch", "left"}
_NO_COST |= {"stddev", "stdev", "std", "sd", "var", "variance", "cv", "stderr", "age", "lifetime", "budget", "limit"}
_NO_COST |= {
    "saved",
    "saving",
    "savings",
    "gain",
    "gained",
    "headroom",
    "slack",
    "deadline",
    "speedup",
    "timeout",
    "think",
}
_NO_COST |= {"sleep", "remaining", "delta", "diff", "difference", "change", "improvement", "reduction", "offset"}
_WORDS = re.compile(r"[A-Z]?[a-zµμ]+|[A-Z]+i?[A-Z]*(?![a-z])|\d+|%|/")
_KEPT = re.compile(r"(?<=[a-z])[KMGT]i?[Bb](?:it|yte)?s?(?:ps|PerS\w*)?$")


def told(name: str) -> tuple[str, Direction]:
    """The unit, empty where the name does not tell it, and which direction is good."""
    words = _words(name)
    low = [word.lower() for word in words]
    if not low:
        return "", "neutral"
    if low[-1] in _PERIODS and len(low) > 1 and low[-2] in ("/", "per"):
        return _rate(words[:-2], low[-1])
    if "/" in low or "per" in low:
        at = max(low.index(mark) for mark in ("/", "per") if mark in low)
        return _each(words[:at], words[at + 1 :])
    if low[-1] in _TIMES:
        counted = low[-2] if len(low) > 1 else ""
        if _TIMES[low[-1]] == "s" and (_SIZE.fullmatch(counted) or _WORK.fullmatch(counted)):
            return _rate(words[:-1], low[-1])
        unclear = counted in _SHORT or (counted.endswith("s") and not counted.endswith("ss") and counted not in _TIMES)
        return _TIMES[low[-1]], "neutral" if unclear or _NO_COST & set(low) else "lower"
    if _RATES.fullmatch(low[-1]) and not _bad(low[:-1]):
        return words[-1], "higher"
    return ("bytes" if low[-1] in ("byte", "bytes") else ""), "neutral"


def _words(name: str) -> list[str]:
    """The words of a name: at signs, at capitals within; sizes and rates (MiB, kIOPS) are one."""
    found: list[str] = []
    for part in re.split(r"[^A-Za-z0-9µμ%/]+", name.replace("/", " / ")):
        if _RATES.fullmatch(part.lower()) or _SIZE.fullmatch(part.lower()):
            found.append(part)
            continue
        size = _KEPT.search(part)  # throughputMBps, opsPerSec
        cut = len(part) if size is None else size.start()
        found += [*_WORDS.findall(part[:cut]), *([part[cut:]] if size else [])]
    return found


def _bad(low: list[str]) -> bool:
    return any(_BAD.search(word) or word in _NO_COST - {"rate", "speed", "throughput", "bandwidth"} for word in low)


def _rate(what: list[str], period: str) -> tuple[str, Direction]:
    """Return the unit and direction of an amount a second."""
    low = [word.lower() for word in what]
    counted = what[-1] if what else ""
    unit = f"{counted}/{_TIMES.get(period, period)}"
    known = bool(what) and not _bad(low) and low[-1] not in _TIMES
    return unit, "higher" if known else "neutral"


def _each(what: list[str], of: list[str]) -> tuple[str, Direction]:
    """Return the unit and direction of an amount for each of something: a cost where it is a time."""
    low, each = [word.lower() for word in what], [word.lower() for word in of]
    rate = len(low) > 1 and low[-2] in ("/", "per")  # mb/s_per_core: a rate for each, no time
    if low and low[-1] in _TIMES and not rate and each and not _NO_COST & {*low, *each}:
        return f"{_TIMES[low[-1]]}/{'_'.join(of)}", "lower"
    if each and each[-1] in _TIMES and low and low[-1] in ("time", "latency", "duration", "elapsed", "wall"):
        return _TIMES[each[-1]], "lower"  # time_per_op_ns
    return "/".join(("_".join(what), "_".join(of))) if what and of else "", "neutral"
