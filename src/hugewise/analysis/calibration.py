"""Calibration records in results/calibration/<host>/, and whether they let a verdict stand.

A record is valid for its machine, kernel, workload, parameters and metric (of guests also accelerator, size, kernel and
backing), for as long as the study says. In an A/A stream both labels of a pair run the same thing: relabelled by fresh
coins it is as many campaigns as one likes in which any verdict is wrong.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from hugewise import reading
from hugewise.files import made_folder, storing, write_whole
from hugewise.model.design import Kind, interleaved, must_agree
from hugewise.model.policy import Treatment
from hugewise.model.workload import GONE
from hugewise.quantity import format_duration
from hugewise.stats import signflip
from hugewise.stats.paired import Student, correlated, dependence, deviation_interval, paired
from hugewise.study.study import Study

RELABELLINGS = 2000
NOMINAL = 0.05
CAMPAIGNS, CAMPAIGN_ALPHA, MOST_VERDICTS = 100, 0.2, 32
_WINDOW = 10  # pairs over which designs are compared


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """Stream of A/A pairs. Differences are log-ratios (0.01 is about 1%); `seconds` is what a pair took.

    sd, sd_low, sd_high   of the pair difference, with a 95% interval: the noise floor
    correlation           within pairs, with a 95% interval
    dependence            lag-1 autocorrelation of the runs, and their statistical inefficiency
    verdict               of the exact test with the real labels at 99%: 0 none, else the sign
    """

    kind: Kind
    pairs: int
    seconds: float
    ratio: float | None
    sd: float
    sd_low: float | None
    sd_high: float | None
    correlation: float | None
    correlation_low: float | None
    correlation_high: float | None
    lag_one: float | None
    inefficiency: float | None
    verdict: int
    differences: tuple[float, ...]


class Relabelled(msgspec.Struct, frozen=True, kw_only=True):
    """Share of relabelled streams with a verdict, all wrong; `limit`: nominal and three standard errors."""

    relabellings: int
    nominal: float
    false_positives: int
    rate: float
    limit: float
    campaigns: int
    campaign_alpha: float
    campaign_verdicts: int
    most_verdicts: int

    @property
    def passed(self) -> bool:
        """True if both counts lie within their limits."""
        return self.rate <= self.limit and self.campaign_verdicts <= self.most_verdicts


class Purchase(msgspec.Struct, frozen=True, kw_only=True):
    """Gain of a design: the blocked design's variance over this one's, for as many pairs, and as much time."""

    design: str
    for_pairs: float | None
    for_time: float | None
    measured: bool


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Agreement of another design (`kind`) with sequential pairs: the difference of the log effects, 95% interval.
    `duet` is the effect in that design, whatever it is; `slice` and `wash_out` are of its turns (seconds, and the share
    that does not count), where arms take turns.
    """

    kind: Kind = "duet"
    arm: str
    treatment: str
    baseline: str
    sequential: float | None
    duet: float | None
    low: float | None
    high: float | None
    within: float
    correlation_sequential: float | None
    correlation_duet: float | None
    agrees: bool
    reason: str
    slice: float | None = None
    wash_out: float | None = None


def stream(
    kind: Kind, first: Sequence[float], second: Sequence[float], in_time: Sequence[float], seconds: float
) -> Stream:
    """Return the figures of pairs (`first` the baseline's values, all positive) and of all values in order of time."""
    differences = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    tests = paired(differences)
    found = correlated([math.log(a) for a in first], [math.log(b) for b in second])
    depends = dependence(np.log(np.asarray(in_time))) if len(in_time) > 2 else None
    floor = deviation_interval(differences)
    lag = None if depends is None or not len(depends.lags) else float(depends.lags[0])
    return Stream(
        kind=kind,
        pairs=len(differences),
        seconds=seconds,
        ratio=None if tests is None else math.exp(tests.centre),
        sd=float(np.std(differences, ddof=1)) if len(differences) > 1 else 0.0,
        sd_low=None if floor is None else floor[0],
        sd_high=None if floor is None else floor[1],
        correlation=None if found is None else found[0],
        correlation_low=None if found is None else found[1],
        correlation_high=None if found is None else found[2],
        lag_one=None if lag is None or math.isnan(lag) else lag,
        inefficiency=None if depends is None else depends.inefficiency,
        verdict=signflip.verdict(differences, 0.01, max(1, len(differences))),
        differences=tuple(differences),
    )


def relabelled(differences: Sequence[float], seed: int) -> Relabelled:
    """Relabel one stream: 2,000 times at nominal 5%, and 100 campaigns at 20%, by the test that makes verdicts. Labels
    change no magnitude, so scores and boundary are taken once.
    """
    coins = np.random.default_rng(seed)
    n = len(differences)
    crossed = _crossings(differences, NOMINAL, _signs(coins, RELABELLINGS, n))
    signs = _signs(coins, CAMPAIGNS, n)
    magnitudes = np.abs(np.asarray(differences))
    verdicts = sum(signflip.verdict(row * magnitudes, CAMPAIGN_ALPHA, n) != 0 for row in signs)
    return Relabelled(
        relabellings=RELABELLINGS,
        nominal=NOMINAL,
        false_positives=crossed,
        rate=crossed / RELABELLINGS,
        limit=NOMINAL + 3 * math.sqrt(NOMINAL * (1 - NOMINAL) / RELABELLINGS),
        campaigns=CAMPAIGNS,
        campaign_alpha=CAMPAIGN_ALPHA,
        campaign_verdicts=verdicts,
        most_verdicts=MOST_VERDICTS,
    )


def _signs(coins: np.random.Generator, rows: int, n: int) -> npt.NDArray[np.int64]:
    return coins.integers(0, 2, (rows, n), dtype=np.int64) * 2 - 1


def _crossings(differences: Sequence[float], alpha: float, signs: npt.NDArray[np.int64]) -> int:
    test = signflip.SignFlip(alpha, len(differences))
    scores, limits, before = [], [], 0
    for difference in differences:
        test.add(abs(difference))
        scores.append(test.walk - before)
        limits.append(math.inf if test.boundary is None else test.boundary)
        before = test.walk
    walks = np.cumsum(signs * np.asarray(scores, dtype=np.int64), axis=1)
    return int(np.any(np.abs(walks) >= np.asarray(limits), axis=1).sum())


def purchases(in_time: Sequence[float], streams: Sequence[Stream]) -> tuple[Purchase, ...]:
    """Return the gain of each design by relabelling windows of 10 pairs of one stream as AAAA..BBBB, ABAB.. and coin
    pairs: each estimate should be 0, so that its mean square is its variance.
    """
    logs = np.log(np.asarray(in_time))
    sequential = next((found for found in streams if found.kind == "sequential"), None)
    starts = range(0, len(logs) - 2 * _WINDOW + 1, 2)
    if sequential is None or not starts:
        return ()
    windows = np.stack([logs[start : start + 2 * _WINDOW] for start in starts])
    halves = windows[:, _WINDOW:].mean(axis=1) - windows[:, :_WINDOW].mean(axis=1)
    steps = windows[:, 1::2] - windows[:, ::2]
    blocked = float(np.mean(halves**2))
    variances = {"blocked": blocked, "alternating": float(np.mean(steps.mean(axis=1) ** 2))}
    variances["coin pairs"] = float(np.mean((steps**2).sum(axis=1))) / _WINDOW**2
    found = [_purchase(name, blocked, variance, 1.0, measured=False) for name, variance in variances.items()]
    for other in streams:
        if other.kind != "sequential" and other.pairs > 1:
            variance = float(np.mean(np.square(other.differences))) / _WINDOW
            pace = sequential.seconds / other.seconds if other.seconds > 0 else 1.0
            found.append(_purchase(other.kind, blocked, variance, pace, measured=True))
    return tuple(found)


def _purchase(design: str, blocked: float, variance: float, pace: float, *, measured: bool) -> Purchase:
    gain = blocked / variance if variance > 0 else None
    return Purchase(design=design, for_pairs=gain, for_time=None if gain is None else gain * pace, measured=measured)


def agreement(arm: str, identities: tuple[str, str], sequential: Stream, duet: Stream, within: float) -> Agreement:
    """Compare a design's effect with the sequential one by Welch's t (95%). A duet is believed within the margin,
    interleaving within twice the margin with 0 inside; either only where its pairs are more alike. `identities`: of
    both treatments.
    """
    one, other = paired(sequential.differences), paired(duet.differences)
    low, high = -math.inf, math.inf
    if isinstance(one, Student) and isinstance(other, Student):
        low, high = _welch(one, other)
    elif one is not None and other is not None:
        low = high = other.centre - one.centre
    inside = -math.log1p(within) <= low and high <= math.log1p(within)
    alike = _above(duet.correlation, sequential.correlation)
    reason = "the effects agree, and pairs of the duet are more alike"
    if not inside:
        reason = f"the effects may lie {_percent(max(abs(low), abs(high)))} apart (agreement: {_percent(within)})"
    elif not alike:
        reason = "its pairs are no more alike than sequential ones, so that it buys nothing"
    agrees = inside and alike
    if interleaved(duet.kind):
        agrees, reason = _interleaved((low, high), (sequential.sd, duet.sd), within)
    return Agreement(
        kind=duet.kind,
        arm=arm,
        treatment=identities[0],
        baseline=identities[1],
        sequential=None if one is None else one.centre,
        duet=None if other is None else other.centre,
        low=None if math.isinf(low) else low,
        high=None if math.isinf(high) else high,
        within=within,
        correlation_sequential=sequential.correlation,
        correlation_duet=duet.correlation,
        agrees=agrees,
        reason=reason,
    )


def _interleaved(apart: tuple[float, float], spreads: tuple[float, float], within: float) -> tuple[bool, str]:
    """Judge whether interleaved pairs are believed, and say why. `apart` is the interval of the difference of the
    effects, `spreads` are the deviations of sequential and interleaved pairs.

    No difference may be seen where one that matters would be: pairs of servers in sequence spread so much that the
    margin itself could not be held, so that it is doubled.
    """
    (low, high), (sequential, spread), most = apart, spreads, 2 * math.log1p(within)
    if not low <= 0 <= high:
        return False, "the effects differ: taking turns changes what is measured"
    if max(-low, high) > most:
        return False, (
            f"the effects may lie {_percent(max(-low, high))} apart (at most {_percent(math.expm1(most))}, twice the"
            " agreement): more pairs would tell"
        )
    if spread >= sequential:
        return False, "its pairs spread no less than sequential ones, so that it buys nothing"
    seen, times = _percent(max(-low, high)), (sequential / spread) ** 2 if spread else math.inf
    return True, f"no difference of the effects is seen (at most {seen}), and {times:.3g} times fewer pairs are needed"


def _welch(one: Student, other: Student) -> tuple[float, float]:
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

    a, b = one.standard_error**2, other.standard_error**2
    error = math.sqrt(a + b)
    freedom = (a + b) ** 2 / (a**2 / (one.n - 1) + b**2 / (other.n - 1))
    half = float(stdtrit(freedom, 0.975)) * error
    centre = other.centre - one.centre
    return centre - half, centre + half


def _above(one: float | None, other: float | None) -> bool:
    return one is not None and (other is None or one > other)


def _percent(value: float) -> str:
    return "any distance" if math.isinf(value) else f"{100 * value:.3g}%"


_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_BESIDE = {"service": ("ready_within", "fill_within", "stop_within", "pool_bytes")}


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """A workload's calibration. `key` says for which workload, parameters, metric and guest it counts."""

    key: str
    cell: str
    metric: str
    policy: str
    streams: tuple[Stream, ...]
    relabelled: Relabelled
    purchases: tuple[Purchase, ...]
    agreements: tuple[Agreement, ...]
    passed: bool
    reason: str


class CalibrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Calibration of one host. `planted` is the share by which one label's work was larger (0: none); `command` the
    command line that began it, as words: none where a program did, or it was not kept.
    """

    format: int = 1
    made: float
    host: str
    machine: str | None
    kernel: str | None
    versions: Mapping[str, str]
    study: str
    seed: str
    planted: float
    runs: tuple[str, ...]
    cells: tuple[Calibrated, ...]
    command: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True if every cell passed."""
        return all(cell.passed for cell in self.cells)


def calibration_key(
    workload: str, values: Mapping[str, Any], metric: str, guest: Mapping[str, Any] | None = None
) -> str:
    """Return the key of a calibration: workload, parameters but waits and reserves, metric, and the `guest` (None: the
    host), whose noise is another's.
    """
    values = {**GONE.get(workload, {}), **values}
    values = {name: value for name, value in values.items() if name not in _BESIDE.get(workload, ())}
    asked = [workload, values, metric] if guest is None else [workload, values, metric, guest]
    exact = msgspec.json.encode(asked, order="deterministic")
    return hashlib.sha256(exact).hexdigest()[:16]


def identity(treatment: Treatment) -> str:
    """Return a treatment's own key: its name does not count, what it does, does."""
    said = msgspec.structs.replace(treatment, policy="")
    exact = msgspec.json.encode(said, order="deterministic")
    if not treatment.surplus:  # those that were made before there was that are still of this treatment
        exact = exact.replace(b'"surplus":false,', b"", 1)
    if not treatment.layout:  # likewise
        exact = exact.removesuffix(b',"layout":""}') + b"}"
    return hashlib.sha256(exact).hexdigest()[:16]


def save(record: CalibrationRecord, folder: Path) -> Path:
    """Write it below `folder`/<host>/. Raises StorageError."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(record.made))
    path = folder / _UNSAFE.sub("-", record.host) / f"{stamp}-{_UNSAFE.sub('-', record.study)}-{record.seed[:4]}.json"
    with storing(str(path)):
        made_folder(path.parent)
        write_whole(path, msgspec.json.format(msgspec.json.encode(record), indent=1))
    return path


def load(folder: Path) -> list[CalibrationRecord]:
    """Return the records below `folder`, the newest first; what is not one is passed over."""
    found = []
    for path in folder.glob("*/*.json"):
        try:
            found.append(reading.stored(path, CalibrationRecord))
        except reading.UnreadableError:
            continue
    return sorted(found, key=lambda record: record.made, reverse=True)


class HostNow(msgspec.Struct, frozen=True):
    """The host as it is: machine id, name, kernel release, and the time."""

    machine: str | None
    host: str
    kernel: str | None
    now: float


class Planned(msgspec.Struct, frozen=True):
    """Properties that `withheld` needs, of a cell or of a metric beside the cell's own (`id`: of both)."""

    id: str
    key: str
    baseline: Treatment
    arms: Mapping[str, Treatment]


def withheld(
    study: Study, cells: Iterable[Planned], records: Sequence[CalibrationRecord], here: HostNow
) -> dict[str, str]:
    """Return why the verdicts of a cell are withheld, by cell; cells that may have verdicts are not in it."""
    kind = study.design.first
    if not (must_agree(kind) or study.calibration.required):
        return {}
    found = {}
    for cell in cells:
        reason = _withheld(study, cell, records, here)
        if reason is not None:
            what = "a duet must be calibrated" if must_agree(kind) else "the study requires a calibration"
            found[cell.id] = f"{what}, and {reason} (hugewise calibrate {study.file or 'STUDY'})"
    return found


def turns_of(study: Study) -> tuple[float | None, float | None]:
    """Return the length of a turn and the share of it that does not count, where arms take turns, or may."""
    design = study.design
    return (design.slice, design.wash_out) if design.kind in ("resident", "interleaved", "auto") else (None, None)


def _withheld(study: Study, cell: Planned, records: Sequence[CalibrationRecord], here: HostNow) -> str | None:
    known_here = [r for r in records if (r.host, r.machine, r.planted) == (here.host, here.machine, 0)]
    mine = [(r, c) for r in known_here for c in r.cells if c.key == cell.key]
    kind = study.design.first
    if must_agree(kind):
        mine = [(r, c) for r, c in mine if any(each.kind == kind for each in c.agreements)]
    if not mine:
        return "there is none of this workload on this host"
    record, calibrated = mine[0]
    if record.kernel != here.kernel:
        return f"the last one was under kernel {record.kernel}"
    age = here.now - record.made
    if age > study.calibration.age:
        return f"the last one is {format_duration(age)} old (age: {format_duration(study.calibration.age)})"
    if not calibrated.passed:
        return f"the last one failed: {calibrated.reason}"
    if must_agree(kind):
        known = {(each.treatment, each.baseline): each for each in calibrated.agreements if each.kind == kind}
        for name, treatment in cell.arms.items():
            held = known.get((identity(treatment), identity(cell.baseline)))
            if held is None:
                return f"the last one had not {name} beside the baseline"
            if not held.agrees:
                return f"for {name} {held.reason}"
    return None
