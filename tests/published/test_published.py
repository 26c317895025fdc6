import math
from statistics import NormalDist, fmean, stdev

import pytest

from hugewise import published
from hugewise.errors import UserError

BENCHMARKS = [(name, benchmark) for name in published.names() for benchmark in published.load(name).benchmarks]


def test_every_file_is_read_and_says_what_it_leaves_out() -> None:
    assert len(published.names()) == 5
    for name in published.names():
        source = published.load(name)
        assert source.source.title and source.source.publisher and source.source.date
        assert source.source.missing
        assert source.facts


def test_a_beginning_names_a_source_when_only_one_has_it() -> None:
    assert published.load("redhat-2021").name == "redhat-2021-vm-1gib"
    assert published.load("percona-2018").source.runs == 3
    with pytest.raises(UserError, match="percona is the beginning of 2") as error:
        published.load("percona")
    assert error.value.hint == "one of: percona-2018-hugepages-postgresql, percona-2019-thp-postgresql"
    with pytest.raises(UserError, match="x is not a published source") as error:
        published.load("x")
    assert "lpc-2024-mthp-arm64" in (error.value.hint or "")
    with pytest.raises(UserError, match="an empty name"):
        published.load("")


@pytest.mark.parametrize(("name", "one"), BENCHMARKS, ids=[one.name for _, one in BENCHMARKS])
def test_the_figures_agree_with_each_other(name: str, one: published.Benchmark) -> None:
    (_, baseline), (_, arm) = one.pair
    effect = abs(arm.mean / baseline.mean - 1) * 100
    assert effect == pytest.approx(one.published_effect_percent, abs=0.12)  # of rounded or single figures
    for sample in (baseline, arm):
        if sample.min is not None and sample.max is not None:
            assert sample.min < sample.mean < sample.max
        if sample.margin_of_error is not None:
            assert sample.sd is not None and sample.n is not None and one.confidence is not None
            z = NormalDist().inv_cdf((1 + one.confidence) / 2)
            assert z * sample.sd / math.sqrt(sample.n) == pytest.approx(sample.margin_of_error, abs=0.01)


def test_the_mean_and_deviation_of_the_mails_cycles_are_those_of_its_ten_runs() -> None:
    source = published.load("lkml-2009")
    cycles = source.facts["noise"]["cycles_10_runs"]
    paravirt = source.benchmarks[0].arms["paravirt"]
    assert paravirt.n == len(cycles)
    assert paravirt.mean == pytest.approx(fmean(cycles))
    assert paravirt.sd == pytest.approx(stdev(cycles), rel=1e-6)
    assert (paravirt.min, paravirt.max) == (min(cycles), max(cycles))


def test_the_2021_studys_samples() -> None:
    by_name = {benchmark.name: benchmark for benchmark in published.load("redhat-2021").benchmarks}
    assert {name: one.arms["thp"].n for name, one in by_name.items()} == {
        "sysbench-memory": 5000,
        "iperf3": 37000,
        "gdb-build": 24000,
    }
    assert [one.layout for one in by_name.values()] == ["fixed slots", "one after the other", "fixed slots"]


def test_a_published_ipc_of_user_mode_stands_beside_no_other() -> None:
    assert published.load("lpc-2024-mthp-arm64").metrics["ipc_user"] == ("ipc_user",)
