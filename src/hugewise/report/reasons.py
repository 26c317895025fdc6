"""Reasons in words: the one place where `hugewise.model.reason` becomes a sentence. Pure.

The words are for readers who know no test. A test that "has crossed" has seen pairs that chance alone would make with
at most the comparison's share of the error rate, whenever one looks: here that is "too consistent for chance".
docs/concepts/sequential.md says it exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from typing import Any, cast

import msgspec

from hugewise.model import reason as of
from hugewise.model.metric import NOT_IN_EMULATION, OPERATIONS, WALL_US
from hugewise.model.reason import TAG, Lack, LeftOut, Reason
from hugewise.report import numbers

_TEXTS = msgspec.toml.decode(
    resources.files(__package__).joinpath("reasons.toml").read_bytes(), type=dict[str, dict[str, str]]
)
_FACTS = _TEXTS["facts"] | {"emulated": NOT_IN_EMULATION}
_AVERAGES: Mapping[str | None, str] = {
    "agrees": "; the average over the run agrees",
    "open": "; the average over the run does not contradict it",
    "contradicts": ", but the average over the run says the opposite",
}
_SHOWN = "the difference is too consistent for chance"
_BUT = "the pairs differ too consistently for chance, but "


def in_words(reason: Reason) -> str:
    """Return a reason as a part of a sentence: it begins in lower case and has no full stop. Text stays as it is."""
    if isinstance(reason, str):
        return reason
    if isinstance(reason, of.Known):
        return _FACTS[reason.fact]
    if (template := _TEXTS["reasons"].get(type(reason).__name__)) is not None:
        return _filled(template, reason)
    return (
        _of_hosts(reason)
        or _of_test(reason)
        or _of_pairs(reason)
        or _of_counts(reason)
        or _of_arms(reason)
        or _of_others(reason)
    )


def _filled(template: str, values: msgspec.Struct) -> str:
    told = msgspec.structs.asdict(values).items()
    return template.format(
        **{name: in_words(cast(Reason, one)) if isinstance(one, of.Base) else one for name, one in told}
    )


def withheld(reason: Reason, why: str) -> bool:
    """Return whether a verdict is withheld for that reason."""
    return isinstance(reason, of.Withheld) and (reason.why == why or withheld(reason.rest, why))


def joined(parts: Iterable[Reason]) -> str:
    """Several, after one another; nothing of what is empty."""
    return "; ".join(filter(None, map(in_words, parts)))


def sentence(reason: Reason) -> str:
    """Return a sentence of its own."""
    text = in_words(reason).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _of_test(reason: Reason) -> str:
    match reason:
        case of.Crossed(pair, average, apart):
            shown = _SHOWN if pair is None else f"from pair {pair} on {_SHOWN}"
            here = "these measurements" if pair is None else "this run"
            return f"{shown}{_with_all(apart)}{_AVERAGES.get(average, f'; this holds for {here}, not for other days')}"
        case of.WithinMargin():
            return _within(reason)
        case of.MeanWithin(unseen, bounded):
            inside = "the interval of the mean lies within the margin"
            return f"{inside}, {'even' if bounded else 'but not'} if these took twice as long: {_stalls(unseen)}"
        case of.NotWithAll(apart):
            out = "those that had to be left out"
            return f"the usable pairs differ, but not once {out} are counted against it{_left_out(apart)}"
        case of.NoOneEffect(crossed):
            changed = "the effect changed in the course of the run, so that no one figure stands for it"
            return f"{_BUT if crossed else ''}{changed}"
        case of.WorstHundredth(crossed):
            return f"on the worst hundredth of runs {_SHOWN if crossed else 'no difference is shown'}"
        case of.SlowShare(share, crossed):
            rates = "slow runs cannot be told yet"
            if share is not None:
                found, low, high = (f"{100 * one:+.1f}" for one in share)
                rates = f"share of slow runs {found} points ({low} to {high}) against the baseline"
            return f"{rates}; {_SHOWN if crossed else 'no difference is shown'}"
    return ""


def _within(reason: of.WithinMargin) -> str:
    which = "" if reason.margin is None else f" of {reason.margin:.3g}"
    if reason.unseen is None:  # as earlier versions stored it
        both = ", for the typical pair and on average" if reason.average else ""
        return f"the whole interval lies within the margin{which}{both}{_with_all(reason.apart)}"
    inside = f"the whole interval of the typical ratio lies within the margin{which}{_with_all(reason.apart)}"
    mean = "and the mean lies within it even if these took twice as long"
    if not reason.average:
        mean = "so that nothing is claimed of the mean"
    return f"{inside}; {_stalls(reason.unseen)}, {mean}"


def _stalls(unseen: float) -> str:
    return f"up to {_share(unseen)} of runs may stall, though none of these pairs shows a stall"


def _share(share: float) -> str:
    return f"{100 * share:.2g}%"


def _of_pairs(reason: Reason) -> str:
    match reason:
        case of.Lacking(lacks):
            return _lacking(lacks)
        case of.FewPairs(pairs, planned, lacks, least):
            one = ", and one shows no spread: an interval takes two at least" if pairs == 1 else ""
            early = "" if least is None else f"a verdict needs {least} pairs at least"
            return joined((f"{pairs} of {planned} planned pairs{one}", _lacking(lacks), early))
        case of.Failures(pairs, "equivalence"):
            return f"attempts failed in {pairs} pairs: that is not equivalent"
        case of.Failures(pairs):
            return f"{pairs} pairs have a failed attempt, so that there is no average log-ratio"
        case of.FailuresAlone(pairs, few):
            count = f"failed attempts alone decide it ({pairs} pairs with one failure)"
            return f"{count}, and they are too few" if few else count
        case of.FewForInterval(pairs, constant):
            counts = ', where nothing varies; of guests, method = "exact" judges counts that are the same in every boot'
            return f"{pairs} pairs are too few for an interval at this confidence{counts if constant else ''}"
        case of.NotKeptIn(usable, whole):
            said = f"it is {whole}" if isinstance(whole, str) else in_words(whole)
            return f"{in_words(usable)}; but with all pairs kept in, {said}"
        case of.Unknown(pairs):
            return f"{_unknown(reason)}: they count against every claim in the test of all pairs"
        case of.Exactly(apart):
            exact = "exact: by the coin of each block alone, for an effect that is the same in every pair"
            return f"{exact}{'; of the usable pairs, and exact with the others kept in' if apart else ''}"
        case of.FewToPlan(pairs, failures, least):
            what = f"{failures} of {pairs} pairs have a failure" if failures else f"{pairs} pairs"
            return f"too few pairs to plan with ({what}; {least} are the least)"
        case of.FewForAverage(pairs, None):
            return f"{pairs} pairs are too few for a campaign average at this error rate"
        case of.FewForAverage(pairs, least):
            return f"the campaign average needs {least} pairs, and there are {pairs}"
    return ""


def _of_counts(reason: Reason) -> str:
    match reason:
        case of.SameCounts(arm, count, baseline, base, boots, within, needed, planned, unseen):
            each = "one boot of each" if boots == 1 else f"each of {boots} boots"
            text = f"{count:,.12g} under {arm} and {base:,.12g} under {baseline} in {each}"
            if needed is not None:
                more = f" (declare so many blocks: {planned} are)" if needed > planned else ""
                what = "different" if within is None else "within the margin"
                return f"{text}; {needed} of each show that they are {what}{more}"
            if within is None:
                return text
            more = "" if unseen is None else f"; up to {_share(unseen)} of boots may differ by more, and none of these"
            return f"{text}: within the margin of {within:.3g}{more}"
        case of.CoinOpen(blocks, least):
            fewest = f": {least} blocks are the fewest" if blocks < least else ""
            return f"the t interval allows a verdict, the coins of {blocks} blocks do not{fewest}"
        case of.CountsVary(rest, side, least, most):
            why = "not every boot of both sides gave a count that can be used"
            if side:
                why = f"counts of {side} vary from boot to boot ({least:,.12g} to {most:,.12g})"
            return f"{why}, so that the sequential test judges; {in_words(rest)}"
    return ""


def _of_hosts(reason: Reason) -> str:
    match reason:
        case of.NoEstimate("failed", pairs, failures):
            return f"attempts failed in {failures} of {pairs} pairs: there is no ratio"
        case of.NoEstimate("no spread", pairs):
            return f"{pairs} pairs do not show how far they spread"
        case of.NoEstimate("method", method=method):
            return f"the method {method} estimates nothing that is claimed"
        case of.NoEstimate():
            return "it has no usable pair"
        case of.OverHosts(verdict, p, p_signs, fewest):
            few = f"; a difference takes at least {fewest} hosts" if fewest else ""
            how = {
                "equivalent": "the whole interval lies within the margin",
                "undecided": f"no difference is shown{few}",
            }
            shown = how.get(verdict, "both show a difference")
            return f"Student's t over hosts, p {p:.2g}; signs of the hosts, p {p_signs:.2g}: {shown}"
    return ""


def _of_arms(reason: Reason) -> str:
    """Return the words for what the arms of a pair did, and did to each other."""
    match reason:
        case of.WorkDiffers(arm, baseline, ratio, pairs):
            percent = 100 * abs(ratio - 1)
            less = f"{percent:.{0 if percent >= 10 else 1}f}% {'less' if ratio < 1 else 'more'} work"
            return f"under {arm} it did {less} than under {baseline} ({OPERATIONS}, {pairs} pairs)"
        case of.CarryOver(low, high, blocks):
            span = numbers.interval(1.0, low, high)
            if not span:
                return f"these {blocks} blocks do not bound the bias by what a turn does to the next one"
            return f"not excluded is a bias of {span} by what a turn does to the next one ({blocks} blocks)"
    return ""


def _of_others(reason: Reason) -> str:
    match reason:
        case of.InFront(margin):
            return f"no other is better by more than {100 * margin:.3g}%"
        case of.OfScreening(said, chosen):
            what = "not the one that goes on" if said is None else f"{'chosen: ' if chosen else ''}{in_words(said)}"
            return f"a screening claims nothing; {what}"
        case of.UnderDesign(rest, condition, boots):
            this = "this boot of its guest" if boots == 1 else f"these {boots} boots of its guest"
            guest = "" if boots is None else f"it is for {this}: another may differ"
            return joined((rest, guest, f"the ratio is one {condition}" if condition else ""))
        case of.Withheld("work", said, rest):
            cure = f"judge the time for each operation (metric {WALL_US.name}), or have it do a fixed work"
            return joined((f"withheld: {in_words(said)}: {cure}", rest))
        case of.Withheld(_, said, rest):
            return joined((f"withheld: {in_words(said)}", rest))
        case of.OtherBaseline(baseline, stands_for, against):
            stated = "no published arm" if stands_for is None else stands_for
            return f"the baseline {baseline} stands for {stated}, not for {against}"
        case of.OneLevel(parameter, within):
            what = "has one level here within what was published" if within else "is not varied here"
            return f"{parameter} {what}"
        case of.NoMetric(wanted):
            return f"no metric of this cell measures it ({', '.join(wanted)})"
        case of.EValue(reached, level):
            return f"the adjusted e-value {'has reached' if reached else 'is below'} {level:.6g}"
        case of.Together(parts):
            return joined(parts)
    return ""


def _lacking(lacks: Iterable[Lack]) -> str:
    return joined(_filled(_TEXTS["lacks"][lack.what], lack) for lack in lacks)


def _unknown(unknown: of.Unknown | None) -> str:
    if unknown is None:
        return ""
    pairs, broken_off = unknown.pairs, unknown.broken_off
    broken = f", {broken_off} of them as their block was not completed" if broken_off else ""
    return f"nothing is known of {pairs} {'pair' if pairs == 1 else 'pairs'}{broken}"


def _left_out(apart: LeftOut) -> str:
    text = joined((_lacking(apart.lacks), _unknown(apart.unknown)))
    return f" ({text})" if text else ""


def _with_all(apart: LeftOut | None) -> str:
    if apart is None:
        return ""
    return f", also with the pairs that had to be left out counted against it{_left_out(apart)}"


def values(one: msgspec.Struct, names: Iterable[str]) -> Iterator[Any]:
    """Yield the values under these names, a reason in words."""
    found = (getattr(one, name) for name in names)
    return (in_words(cast(Reason, each)) if isinstance(each, of.Base) else each for each in found)


def worded(value: object, other: Callable[[Any], Any] | None = None) -> Any:
    """Return a value for others, its reasons in words; `other` converts a type that is no JSON."""
    return _worded(msgspec.to_builtins(value, str_keys=True, enc_hook=other))


def _worded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_worded(one) for one in value]
    if isinstance(value, dict):
        if TAG in value:
            found: Reason = msgspec.convert(value, Reason)
            return in_words(found)
        return {name: _worded(one) for name, one in value.items()}
    return value
