"""The worked example of the guide to runs: the dry run that it quotes is the study's."""

import re
from pathlib import Path

from hugewise import workloads
from hugewise.cli import list as listing
from hugewise.model.results import CellResult
from hugewise.plan import cells
from hugewise.study import load
from hugewise.study.study import Study
from tests.build import known
from tools.results import data

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs/guides/runs.md").read_text(encoding="utf-8")
PART = GUIDE.partition("## One cell, several metrics, a page\n")[2].partition("\n## ")[0]


def study() -> Study:
    """As the example's command chooses it."""
    whole = load.load(Path("percona-2018-hugepages"))
    return load.with_budget(load.part(whole, ["select-only"], ["hugetlb-2m"]), None, "40m")


def test_the_dry_run_that_it_quotes_is_of_the_study() -> None:
    (cell,) = cells.resolve(study(), workloads.discover())
    metrics = ", ".join(f"{metric.name} ({metric.unit})" for metric in (cell.metric, *cell.also))
    assert [metric.name for metric in (cell.metric, *cell.also)] == ["tps", "server_cpu_us"]
    arms = [use.name for use in study().policies]
    assert re.search(rf"^{cell.id} +{re.escape(metrics)} +{', '.join(arms)}$", PART, re.MULTILINE)
    judged = (len(arms) - 1) * (1 + len(cell.also))
    assert f"\n{listing._budget(study(), judged)}\n" in PART
    shown = re.search(r"^also = (\[.*?\])", PART, re.MULTILINE)
    assert shown is not None and shown[1] == '["server_cpu_us"]'


def test_what_is_told_of_paravirtualised_page_tables_is_what_the_committed_run_has() -> None:
    """Ratios with their intervals, and the instructions of a call, from the data of the page that is named there."""
    told = (ROOT / "docs/concepts/guests.md").read_text(encoding="utf-8")
    part = " ".join(told.partition("**Instructions of mmap-perf.**")[2].partition("\n\n")[0].split())
    (run,) = data.read(ROOT / "docs/results/lkml-2009-paravirt.parquet").runs
    assert "(../results/lkml-2009-paravirt.md)" in part
    perf, lat = run.results.cells
    assert (perf.workload, lat.workload) == ("mmap-perf", "lat-mmap")

    def change(cell: CellResult, arm: str, digits: int) -> str:
        (one,) = (each for each in cell.comparisons if each.arm == arm)
        ratio, low, high = (f"{100 * (known(each) - 1):+.{digits}f}%" for each in (one.ratio, one.low, one.high))
        return f"{ratio} ({low} to {high})".replace("-", "−").replace("+0.00% ", "0.00% ").replace("−0.00% ", "0.00% ")

    assert change(perf, "paravirt", 3) in part
    assert change(lat, "paravirt", 2) in part
    ratio, _, interval = change(perf, "paravirt-xxl", 2).partition(" (")
    (xxl,) = (each for each in perf.comparisons if each.arm == "paravirt-xxl")
    assert f"{interval[:-1]}, {xxl.n} blocks, a {100 * xxl.confidence:.2f}% interval" in part
    assert f"Linux 6.12 has {ratio} (`paravirt-xxl`; {interval[:-1]}, {perf.comparisons[0].n} blocks" in part
    calls = perf.parameters["calls"]
    means = {each.arm: known(each.mean) / calls for each in perf.arms}
    assert f"a call that has {means['native']:,.0f} instructions in 6.12" in part
    assert f"The difference is {means['paravirt-xxl'] - means['native']:.0f} instructions for a call" in part
    verdicts = {comparison.arm: comparison.verdict for comparison in perf.comparisons}
    assert (verdicts["paravirt"], verdicts["paravirt-xxl"]) == ("equivalent", "worse")
