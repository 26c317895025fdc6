"""Claims over several runs: a page's "Set it", the overview of many pages, an answer after earlier runs, `compare`.

Nobody looks at one run alone. A run is begun anew until it says "better", or broken off while it does not look so; of
many pages those are read that say something; two runs are held against each other. Each run here is a record of blocks
in which the arm makes no difference, read by what reads real ones (`analysis.results_of`), up to the words. The control
of each is what the same runs say by their own verdicts alone: it must be seen to be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from numpy.random import Generator

from hugewise.advise.advice import confirmed, with_earlier_runs
from hugewise.analysis import analysis
from hugewise.analysis.combining import compared_runs
from hugewise.model.results import Comparison, EarlierComparison, Results
from hugewise.model.trial import Block
from hugewise.report.cell_answers import answers
from hugewise.stats.evidence import EProcess
from hugewise.stats.signflip import SignFlip
from hugewise.store.records import Run
from tools.results.data import PageData, PageRun
from tools.results.programs import policies_of
from tools.verification import studies
from tools.verification.block_streams import CONTRAST, pair
from tools.verification.candidate import CheckResult, Task
from tools.verification.generators import generator
from tools.verification.studies import CELL, study_of

ALPHA = 0.01
PAIRS = 24
AGAIN = (20, 50)
PAGES = (13, 50)
SPREADS = (0.005, 0.01, 0.02)
_LOOK = 8  # pairs after which a run that does not look better is broken off
_PROMISING = 3.0  # e-value
_SD = 0.03
_QUIET = 0.003  # of runs that are compared
_ALONE = "alone"
_RUNS = 4  # of each kind that is compared
_STUDY = study_of(blocks=PAIRS, alpha=ALPHA)


class Played(NamedTuple):
    """The blocks of a run until its test crosses, and whether it crossed with a smaller arm."""

    blocks: list[Block]
    smaller: bool


def play(random: Generator, effect: float = 0.0, *, sd: float = _SD, broken_off: bool = False) -> Played:
    """Play a run to its end; `broken_off`: unless it looks better after the first pairs."""
    test, evidence = SignFlip(ALPHA, PAIRS), EProcess()
    found: list[Block] = []
    for number in range(1, PAIRS + 1):
        arm, base = (sd * random.standard_normal(2)).tolist()
        found.append(pair(number, arm + effect, base))
        test.add(arm + effect - base)
        evidence.add(arm + effect - base)
        if test.crossed_at is not None or (broken_off and number == _LOOK and evidence.down < _PROMISING):
            break
    return Played(found, test.sign < 0)


def run_of(number: int, blocks: Sequence[Block], *, page: int = 0, kernel: str = "") -> Run:
    """Return the run as it would be read, of a question of its own for each `page`."""
    cell = msgspec.structs.replace(CELL, values={"loads": page})
    host = {"machine": "m", "kernel": {"release": kernel}}
    return studies.run_of(_STUDY, blocks, (cell,), name=f"{page}-{number}", t=1000.0 * number, host=host)


def _results(number: int, blocks: Sequence[Block], page: int = 0) -> Results:
    return analysis.results_of(run_of(number, blocks, page=page))


def _set(pages: Sequence[Sequence[Results]]) -> bool:
    """Return whether anything on these pages is to be set."""
    found = {
        str(at): PageData(runs=tuple(PageRun(results=run) for run in reversed(runs))) for at, runs in enumerate(pages)
    }
    return any(row.found.stands == "set" for row in policies_of(found))


def begun_anew(seed: int, repeats: int, most: int) -> Sequence[CheckResult]:
    """Check a run that is begun anew until it says "better": by the page, by an advice, by the report's answer, and by
    its own verdict alone.
    """
    random = generator(seed, "begun anew", str(most))
    wrong = dict.fromkeys(("a page says set", "an answer says set", "an advice says set", _ALONE), 0)
    for _ in range(repeats):
        seen = dict.fromkeys(wrong, False)
        runs: list[Played] = []
        for _ in range(most):
            runs.append(play(random, broken_off=True))
            if runs[-1].smaller:
                every = [_results(at, one.blocks) for at, one in enumerate(runs, 1)]
                seen[_ALONE] |= _verdict(every[-1]).verdict == "better"
                seen["a page says set"] |= _set([every])
                answer, advice = _after(every)
                seen["an answer says set"] |= answer == "set"
                seen["an advice says set"] |= advice == "better"
        for what, was in seen.items():
            wrong[what] += was
    alone = wrong.pop(_ALONE)
    return [
        *(_judged(f"{most} runs begun anew: {what}", count, repeats) for what, count in wrong.items()),
        _control(f"{most} runs begun anew: one says better by itself", alone, repeats),
    ]


def _verdict(results: Results) -> Comparison:
    return results.cells[0].comparisons[0]


def _after(every: Sequence[Results]) -> tuple[str, str]:
    """Return the answer of the last run's report, and the verdict of an advice that it confirms."""
    before = {}
    for results in every[:-1]:
        one = _verdict(results)
        told = one.n, one.verdict, one.evidence_larger, one.evidence_smaller
        before[f"again/{results.run}"] = (EarlierComparison(CONTRAST.cell, one.arm, one.metric, *told),)
    now = msgspec.structs.replace(every[-1], earlier=tuple(before), earlier_shared=before)
    (cell,) = now.cells
    last = with_earlier_runs(confirmed("", cell, _verdict(now)), now, cell, _verdict(now))
    return answers(now)[0].state, last.verdict


def overview(seed: int, repeats: int, pages: int) -> Sequence[CheckResult]:
    """Check the overview of pages of one run each, in none of which the arm makes a difference."""
    random = generator(seed, "overview", str(pages))
    wrong = alone = 0
    for _ in range(repeats):
        runs = [play(random) for _ in range(pages)]
        if any(one.smaller for one in runs):
            every = [_results(1, one.blocks, page) for page, one in enumerate(runs)]
            alone += any(_verdict(results).verdict == "better" for results in every)
            wrong += _set([[results] for results in every])
    return [
        _judged(f"an overview of {pages} pages says set", wrong, repeats),
        _control(f"{pages} pages: one says better by itself", alone, repeats),
    ]


def two_kinds(seed: int, repeats: int, spread: float) -> Sequence[CheckResult]:
    """Check `compare` on runs of one effect whose own effects spread, with and without runs that repeat them."""
    random = generator(seed, "two kinds", str(spread))
    wrong = claims = apart = 0
    for _ in range(repeats):
        effects = (-0.1 + spread * random.standard_normal(2 * _RUNS)).tolist()
        runs = [
            run_of(number, play(random, effect, sd=_QUIET).blocks, kernel=str(number % 2))
            for number, effect in enumerate(effects)
        ]
        alone = compared_runs(runs[0], runs[1]).effects[0]
        claims += alone.relation in ("higher", "lower", "alike")
        apart += alone.low is not None and alone.high is not None and not alone.low <= 1 <= alone.high
        both = compared_runs(runs[0], runs[1], (runs[2::2], runs[3::2])).effects[0]
        wrong += both.relation in ("higher", "lower")
    name = f"runs that spread by {spread:.1%}"
    return [
        _judged(f"compare, {name}, with {_RUNS} runs of each", wrong, repeats),
        CheckResult("reruns", f"compare, {name}, two runs alone: claims", f"{claims} of {repeats}", "0", claims == 0),
        _control(f"compare, {name}: intervals of two runs apart", apart, repeats),
    ]


def _judged(case: str, wrong: int, repeats: int) -> CheckResult:
    most = limit(repeats)
    return CheckResult("reruns", case, f"{wrong} of {repeats}", f"<= {most}", wrong <= most)


def _control(case: str, wrong: int, repeats: int) -> CheckResult:
    most = limit(repeats)
    return CheckResult("control", case, f"{wrong} of {repeats}", f"> {most}", wrong > most)


def limit(repeats: int) -> int:
    """Return the most of so many that may be wrong: 3 standard errors above alpha (8 of 300)."""
    return math.floor(repeats * ALPHA + 3 * math.sqrt(repeats * ALPHA * (1 - ALPHA)))


def tasks(seed: int, repeats: int) -> list[Task]:
    """Return one task a case."""
    return [
        *(Task(f"reruns: {most} begun anew", begun_anew, (seed, repeats, most)) for most in AGAIN),
        *(Task(f"reruns: {pages} pages", overview, (seed, repeats, pages)) for pages in PAGES),
        *(Task(f"reruns: spread {spread:g}", two_kinds, (seed, repeats, spread)) for spread in SPREADS),
    ]
