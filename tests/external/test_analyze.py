"""`hugewise analyze`, from files to verdicts, estimates and reports."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from hugewise.cli.main import cli
from hugewise.errors import UserError
from hugewise.external.analyze import analyze
from hugewise.external.compare import AnalysisPlan, ExternalComparison, ExternalResults
from hugewise.external.reader import Ask, DataError
from hugewise.report.document import Heading, Line, Points, Table, Verdicts, brief
from hugewise.report.external import json_of, report, sentence, write
from hugewise.report.reasons import in_words
from hugewise.report.sentences import EXACT_LEGEND, LEGEND_TITLE
from hugewise.stats.sequential import Sequential
from tests.build.pages import scriptless
from tests.build.trials import CONTRAST, attempt, block
from tests.report.told import blocks, printed

DATA = Path(__file__).parent / "readers" / "data"
ASK = Ask(value="seconds", unit="s", better="lower", block="round", order="at", slot="vm", session="session")


def campaign(path: Path, *, n: int, effect: float, seed: int = 1, fixed: bool = False, coin: bool = True) -> Path:
    """Paired builds as in the study of 2021: common machine noise, outliers; slots by a coin, or fixed to the arm."""
    rng = np.random.default_rng(seed)
    host, own = rng.normal(0, 0.09, n), rng.normal(0, 0.02, (n, 2))
    stall = np.where(rng.random((n, 2)) < 0.005, rng.exponential(0.5, (n, 2)), 0.0)
    times = 147 * np.exp(host[:, None] + own + stall + np.array([0.0, effect]))
    rows = ["round,at,arm,vm,session,seconds"]
    for i in range(n):
        swap = coin and rng.random() < 0.5
        for place, arm in enumerate(("shp1g", "thp") if swap else ("thp", "shp1g")):
            vm = arm if fixed else f"vm{place}"
            rows.append(f"{i},{2 * i + place},{arm},{vm},{i // 50},{times[i, int(arm == 'shp1g')]:.4f}")
    path.write_text("\n".join(rows) + "\n")
    return path


def only(results: ExternalResults) -> ExternalComparison:
    ((comparison,),) = [metric.comparisons for metric in results.metrics]
    return comparison


def test_randomised_pairs_get_the_exact_verdict(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c.csv", n=150, effect=-0.02)
    comparison = only(analyze([path], ask=ASK, plan=AnalysisPlan(confidence=0.9999, randomised=True)))
    assert (comparison.arm, comparison.baseline, comparison.verdict) == ("shp1g", "thp", "better")
    assert comparison.low is not None and comparison.high is not None and comparison.ratio is not None
    assert comparison.low < np.exp(-0.02) < comparison.high < 1
    assert comparison.ratio == pytest.approx(np.exp(-0.02), rel=0.01)
    assert comparison.n == 150 and comparison.shared is not None and comparison.shared > 0.7
    assert [tier.name for tier in comparison.tiers] == ["this campaign", "campaign average", "beyond these sessions"]
    assert comparison.tiers[1].high is not None and comparison.tiers[2].low is None


def rounds(path: Path, times: Sequence[tuple[float | None, float | None]], seed: int = 1) -> Path:
    """Blocks of these seconds of thp and base (None: a row without a value), in an order of coins."""
    rng, rows = np.random.default_rng(seed), ["round,at,arm,seconds"]
    for number, pair in enumerate(times):
        sides = list(zip(("thp", "base"), pair, strict=True))
        for place, (arm, seconds) in enumerate(sides if rng.random() < 0.5 else sides[::-1]):
            rows.append(f"{number},{2 * number + place},{arm},{'' if seconds is None else f'{seconds:.6f}'}")
    path.write_text("\n".join(rows) + "\n")
    return path


def randomised(path: Path, confidence: float = 0.99, margin: float = 0.02) -> ExternalComparison:
    ask = replace(ASK, slot=None, session=None)
    plan = AnalysisPlan(confidence=confidence, margin=margin, baseline="base", randomised=True)
    return only(analyze([path], ask=ask, plan=plan))


def test_the_comparisons_of_all_arms_share_the_error_rate(tmp_path: Path) -> None:
    path = tmp_path / "arms.csv"
    rows = (f"{arm},{1 + number / 100}" for number in range(12) for arm in ("base", "thp", "mthp"))
    path.write_text("\n".join(("arm,seconds", *rows)) + "\n")
    results = analyze([path], ask=Ask(value="seconds", unit="s", better="lower"), plan=AnalysisPlan(confidence=0.9))
    assert [one.confidence for one in results.metrics[0].comparisons] == pytest.approx([0.95, 0.95])


def test_blocks_of_elsewhere_are_judged_as_those_of_a_run(tmp_path: Path) -> None:
    """Values, intervals, tiers and reason of the method of a run after the same blocks."""
    rng = np.random.default_rng(5)
    times = [(float(a), float(b)) for a, b in np.exp(rng.normal((-0.03, 0), 0.05, (120, 2)))]
    times = [(round(a, 6), round(b, 6)) for a, b in times]
    found = randomised(rounds(tmp_path / "c.csv", times))
    method = Sequential(CONTRAST, planned=120, alpha=0.01, margin=0.02, open_ended=True)
    for number, (arm, base) in enumerate(times):
        method.take(block(number, attempt("thp", arm), attempt("base", base)))
    run = method.comparison()
    assert run.verdict == "better"
    assert "from pair" in in_words(run.reason) and "from pair" not in in_words(found.reason)
    assert (found.verdict, found.n, found.ratio, found.low, found.high) == (
        *(run.verdict, run.n),
        *(run.ratio, run.low, run.high),
    )
    assert [(tier.low, tier.high) for tier in found.tiers] == [(tier.low, tier.high) for tier in run.tiers]


def test_a_block_without_a_value_counts_against_the_claim(tmp_path: Path) -> None:
    """Sixteen pairs of one sign would be a verdict; one more block lost the arm, and nobody knows its time."""
    rng = np.random.default_rng(8)
    many: list[tuple[float | None, float | None]] = [(float(one), 1.2) for one in rng.normal(1.0, 0.01, 100)]
    clear = many[:16]
    assert randomised(rounds(tmp_path / "clear.csv", clear)).verdict == "better"
    lost = randomised(rounds(tmp_path / "lost.csv", [*clear[:3], (None, 1.2), *clear[3:13]]))
    # one of 14 blocks is more than a hundredth: the layout says so, and there is no verdict whatever the rest shows
    assert lost.verdict == "none" and "missing" in in_words(lost.reason)
    kept = randomised(rounds(tmp_path / "kept.csv", [*many[:5], (None, 1.2), *many[5:]]))
    assert (kept.verdict, kept.n) == ("better", 100)
    assert "counted against it" in in_words(kept.reason) and "nothing is known of 1 pair" in in_words(kept.reason)


def test_equivalence_of_elsewhere_names_the_stalls_that_it_cannot_exclude(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    logs = rng.normal(0, 0.002, (400, 2))
    few = randomised(rounds(tmp_path / "few.csv", np.exp(logs[:40]).tolist()))
    assert few.verdict == "equivalent"
    said = (
        "up to 11% of runs may stall, though none of these pairs shows a stall, so that nothing is claimed of the mean"
    )
    assert said in in_words(few.reason)
    many = randomised(rounds(tmp_path / "many.csv", np.exp(logs).tolist()))
    assert "up to 1.1% of runs may stall" in in_words(many.reason)
    assert in_words(many.reason).endswith("and the mean lies within it even if these took twice as long")
    stalls = logs[:100].copy()
    stalls[50:55, 0] += 0.59
    assert randomised(rounds(tmp_path / "stalls.csv", np.exp(stalls).tolist())).verdict == "undecided"


@pytest.mark.parametrize(
    ("fixed", "coin", "declared", "why"),
    [
        (True, True, True, "never shared a slot"),
        (False, False, True, "no fair coin does that"),
        (False, True, False, "nothing says that a coin"),
    ],
)
def test_layouts_that_cannot_carry_a_verdict_get_none(
    tmp_path: Path, fixed: bool, coin: bool, declared: bool, why: str
) -> None:
    path = campaign(tmp_path / "c.csv", n=200, effect=-0.05, fixed=fixed, coin=coin)
    ask = replace(ASK, slot="vm" if fixed else None)
    comparison = only(analyze([path], ask=ask, plan=AnalysisPlan(randomised=declared)))
    assert comparison.verdict == "none" and why in in_words(comparison.reason)


def test_unpaired_samples_get_an_estimate_and_no_word_of_a_verdict(tmp_path: Path) -> None:
    results = analyze([DATA / "hyperfine.json"])
    comparison = only(results)
    assert comparison.method.startswith("Welch") and comparison.verdict == "none"
    assert "AAAA..BBBB" in in_words(comparison.reason)
    assert any("before looking" in line for line in comparison.assumptions)
    assert comparison.low is not None and comparison.low > 1
    (metric,) = results.metrics
    said = sentence(comparison, metric, results.margin)
    assert re.search(r"^No verdict on .* against .*\. The numbers are an estimate: .* interval", said)
    made = write(results, report(results), tmp_path / "out").values()
    page = "\n".join(path.read_text() for path in made if path.suffix in (".md", ".html", ".json"))
    for word in ("suggest", "p of no difference", '"p":', " is worse than", " is better than"):
        assert word not in page, word


def test_one_run_of_each_arm_has_no_interval() -> None:
    """Intervals of one run are not replicates, as the 37,000 of iperf3 in the study of 2021 may have been."""
    files = [DATA / "pgbench-transactions.log", DATA / "pgbench-rate.log"]
    comparison = only(analyze(files, arms=["base", "thp"]))
    assert comparison.verdict == "none" and comparison.low is None
    assert any(caveat.sentence.startswith("Pseudo-replication") for caveat in comparison.layout.caveats)


def test_dependent_values_count_for_less(tmp_path: Path) -> None:
    """37,000 values with autocorrelation 0.8 are worth about 4,100: the difference of 0.37% is then no finding."""
    from scipy.signal import lfilter

    rng = np.random.default_rng(2)
    for arm, mean, sd in (("thp", 29.74, 1.58), ("shp1g", 29.85, 1.40)):
        noise = lfilter([0.6], [1, -0.8], rng.standard_normal(37_000))
        rows = "\n".join(f"{i},{mean + sd * value:.3f}" for i, value in enumerate(noise))
        (tmp_path / f"{arm}.csv").write_text(f"second,gbit_per_s\n{rows}\n")
    files = [tmp_path / "thp.csv", tmp_path / "shp1g.csv"]
    ask = Ask(value="gbit_per_s", better="higher", order="second")
    results = analyze(files, ask=ask, plan=AnalysisPlan(confidence=0.9999))
    comparison = only(results)
    assert 3000 < comparison.n < 5200
    assert any("depend on those before them" in caveat.sentence for caveat in comparison.layout.caveats)
    assert results.metrics[0].arms[0].figures.margin == pytest.approx(0.03, abs=0.005)  # the published one


def test_runs_are_counted_by_their_means(tmp_path: Path) -> None:
    rows = ["arm,run,v"]
    rng = np.random.default_rng(4)
    for run in range(12):
        level = 10 + rng.normal(0, 1)
        rows += [f"{'ab'[run % 2]},{run},{level + rng.normal(0, 0.01)}" for _ in range(100)]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(rows))
    comparison = only(analyze([path], ask=Ask(value="v", run="run", better="lower")))
    assert comparison.n == 6 and comparison.low is not None and comparison.high is not None
    assert comparison.low < 1 < comparison.high
    assert "6 runs of b, each by its mean" in comparison.assumptions[0]


def test_what_is_declared_wrongly_is_refused(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c.csv", n=30, effect=0.0)
    with pytest.raises(UserError, match="no block holds both arms"):
        analyze([DATA / "hyperfine.json"], plan=AnalysisPlan(randomised=True))
    with pytest.raises(UserError, match="--budget 20: there are 30 blocks"):
        analyze([path], ask=ASK, plan=AnalysisPlan(randomised=True, budget=20))
    with pytest.raises(UserError, match="--baseline x: no such arm"):
        analyze([path], ask=ASK, plan=AnalysisPlan(baseline="x"))
    with pytest.raises(UserError, match="--metric x: not in these files"):
        analyze([path], ask=ASK, plan=AnalysisPlan(metrics=("x",)))
    with pytest.raises(DataError, match="no value of cycles"):
        analyze([DATA / "perf-stat.json"], plan=AnalysisPlan(metrics=("cycles",)))


def test_more_blocks_than_the_exact_test_takes_are_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 30_001
    rows = "".join(f"{i},{arm},1.{i % 7}\n" for i in range(number) for arm in ("base", "thp"))
    path = tmp_path / "many.csv"
    path.write_text(f"block,arm,wall_s\n{rows}")
    ask = Ask(value="wall_s", block="block")
    monkeypatch.setattr(Sequential, "take", lambda self, block: pytest.fail("a block was judged"))
    with pytest.raises(UserError, match="there are 30,001 blocks of thp and base, and 30,000 at most") as refused:
        analyze([path], ask=ask, plan=AnalysisPlan(randomised=True))
    assert "give the first 30,000" in str(refused.value.hint) and "--randomised" in str(refused.value.hint)
    assert only(analyze([path], ask=ask)).n == number


def test_the_three_questions_of_the_study_are_answered(tmp_path: Path) -> None:
    """Data with the published moments of the builds: n, mean, sd, and what lies beyond 3 and 6 sd."""
    rng = np.random.default_rng(3)
    n = 24_000
    rows = ["arm,seconds"]
    for arm, mean, sd, far, farther, longest in (
        ("thp", 147.08, 14.53, 130, 6, 592.13),
        ("shp1g", 145.43, 14.42, 120, 11, 562.92),
    ):
        values = mean - 0.5 + 0.955 * sd * np.clip(rng.standard_normal(n), -3.2, 3.1)
        values[:far] = mean + sd * (3.1 + rng.exponential(0.6, far))
        values[:farther] = np.linspace(mean + 7 * sd, longest, farther)
        rows += [f"{arm},{value:.2f}" for value in rng.permutation(values)]
    path = tmp_path / "builds.csv"
    path.write_text("\n".join(rows))
    results = analyze([path], ask=Ask(value="seconds", unit="s", better="lower"), plan=AnalysisPlan(confidence=0.9999))
    thp = results.metrics[0].arms[0].figures
    assert thp.mean == pytest.approx(147.08, abs=0.4) and thp.sd == pytest.approx(14.53, abs=0.8)
    assert thp.margin == pytest.approx(0.36, abs=0.02)
    document = report(results)
    page = "\n".join(line for points in blocks(document, Points) for line in points.lines)
    page += "\n".join(line.text for line in blocks(document, Line))
    assert re.search(r"thp: not normal\. .*a normal bulk with a tail that is not", page)
    assert re.search(r"the 99.99% interval lies wholly below the true mean with chance", page)
    assert re.search(r"thp: 1\d\d of 24,000 values lie beyond 3 standard deviations \(a normal sample has 65\)", page)
    assert "widen the margin of error rather than invalidate it" in page
    assert "order of the values in time is not known here, so independence cannot be checked" in page
    assert re.search(r"thp: the standard deviation is \d+\.\d% of the mean; the bulk alone \d\.\d%", page)
    assert "Causes have no names in such data" in page
    assert not re.search(r"shp1g is (better|worse) than thp: seconds.*from", page)


def test_reports_are_whole_escaped_and_self_contained(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    rows = [f"{'<b>&' if i % 2 else 'a|b'},{100 + i % 7}" for i in range(60)]
    path.write_text("arm,wall_s\n" + "\n".join(rows))
    results = analyze([path])
    paths = write(results, report(results), tmp_path / "out")
    page = scriptless(paths["html"].read_text())
    assert "<b>&amp;" not in page and "&lt;b&gt;&amp;" in page
    assert "http://" not in page.replace("http-equiv", "")
    assert page.count("<figure>") == 2  # without an order: no time order, no autocorrelation
    assert "a\\|b" in paths["markdown"].read_text()
    document = json.loads(paths["json"].read_bytes())
    assert document["metrics"][0]["arms"][0]["figures"]["n"] == 30
    assert json.loads(json_of(results)) == document
    for key in ("1-histogram.svg", "1-qq.svg"):
        assert paths[key].stat().st_size > 1000


def test_the_terminal_shows_what_matters() -> None:
    document = brief(report(analyze([DATA / "hyperfine.json"])))
    assert max(map(len, printed(document).splitlines())) <= 80
    (verdicts,) = blocks(document, Verdicts)
    assert verdicts.verdicts[0].verdict == "none"
    assert verdicts.verdicts[0].text.startswith("No verdict on sleep against base")
    assert "What this layout cannot support" in [block.text for block in blocks(document, Heading)]


def test_the_command(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c.csv", n=60, effect=-0.05)
    words = "--value seconds --better lower --baseline thp --block round --order at --slot vm --randomised"
    done = CliRunner().invoke(cli, ["analyze", str(path), *shlex.split(words), "--output", str(tmp_path / "r")])
    assert done.exit_code == 0, done.output
    assert "shp1g is better than thp" in " ".join(done.output.split())
    assert (tmp_path / "r" / "report.html").is_file()


def test_the_command_refuses_by_name(tmp_path: Path) -> None:
    for options, message in (
        (["--confidence", "2"], "--confidence 2.0"),
        (["--margin", "x"], "--margin x"),
        (["--budget", "5"], "--budget belongs to --randomised"),
        (["--format", "x"], "--format x: no such format"),
    ):
        done = CliRunner().invoke(cli, ["analyze", str(DATA / "hyperfine.json"), *options])
        assert isinstance(done.exception, UserError)
        assert message in done.exception.message and done.exception.hint


def test_an_interval_with_one_end_and_the_legend_of_the_exact_test(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c.csv", n=150, effect=-0.02)
    results = analyze([path], ask=ASK, plan=AnalysisPlan(confidence=0.9999, randomised=True))
    (metric,) = results.metrics
    one = only(results)
    assert "(99.99% interval: at least 1.0% lower), from 150 pairs." in sentence(
        msgspec.structs.replace(one, ratio=0.98, low=None, high=0.99), metric, 0.005
    )
    assert "(no 99.99% interval yet), from" in sentence(
        msgspec.structs.replace(one, low=None, high=None, verdict="undecided"), metric, 0.005
    )
    tier = msgspec.structs.replace(one.tiers[1], low=None, high=0.99)
    open_ended = msgspec.structs.replace(one, low=None, high=0.99, tiers=(tier,))
    shown = msgspec.structs.replace(results, metrics=(msgspec.structs.replace(metric, comparisons=(open_ended,)),))
    document = report(shown)
    rows = [row for table in blocks(document, Table) for row in table.rows]
    assert ("campaign average (ratio of geometric means)", "at most 0.9900", in_words(tier.sentence)) in rows
    (legend,) = [section for section in document.sections if section.title == LEGEND_TITLE]
    assert legend.blocks == (Points(EXACT_LEGEND),)
    fixed = campaign(tmp_path / "f.csv", n=20, effect=-0.02, fixed=True, coin=False)
    assert LEGEND_TITLE not in [one.title for one in report(analyze([fixed], ask=ASK, plan=AnalysisPlan())).sections]
