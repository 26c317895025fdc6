"""The report of a fleet: its documents in three formats, with hostile names."""

import re
from pathlib import Path

import msgspec

from hugewise.model.fleet import (
    FleetComparison,
    FleetHost,
    FleetResults,
    FleetStratum,
    HostEffect,
    LeftOutHost,
    PooledEffect,
    ProductOfEvidence,
    WithoutHost,
)
from hugewise.model.metric import Metric
from hugewise.report import fleet
from hugewise.report.document import Headline, figures
from hugewise.report.figures.effects import MOST, forest
from hugewise.report.html import html
from hugewise.report.markdown import markdown
from tests.build import known
from tests.report.test_answers import JARGON, header, words
from tests.report.told import printed

METRIC = Metric("wall_s", "s", "lower", "time of a run")


def host(name: str, ratio: float | None = 0.9, **changes: object) -> HostEffect:
    made = HostEffect(
        host=name, stratum="A", verdict="better", reason="", n=20, ratio=ratio, low=0.88, high=0.92, confidence=0.99,
        pooled_ratio=0.905, error=0.01,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def effect(stratum: str = "A", **changes: object) -> PooledEffect:
    made = PooledEffect(
        stratum=stratum, asked=6, hosts=6, verdict="better", reason="p 0.001", ratio=0.9, low=0.88, high=0.92,
        confidence=0.99, p=0.001, error=0.005, spread=0.01, spread_low=0.0, spread_high=0.03, next_low=0.87,
        next_high=0.93, next_good=0.9995, without=(WithoutHost("h1", 0.91), WithoutHost("h2", 0.899)),
        evidence=(
            ProductOfEvidence(
                end_point="typical ratio", hosts=6, larger=0.01, smaller=1e120, adjusted=1e9, direction="smaller",
                verdict="better", reason="",
            ),
        ),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def results(**changes: object) -> FleetResults:
    made = FleetResults(
        fleet="f1", study="demo", question="Does it hold?", folder="x", confidence=0.99, margin=0.005,
        composition="the hosts that answered",
        hosts=tuple(
            FleetHost(
                host=f"h{number}", stratum="A", run=f"r{number}", folder=f"hosts/h{number}/r", state="finished",
                attempts=40, blocks=20, started=1.7e9, ended=1.7e9, mechanism="system",
            )
            for number in range(1, 7)
        ),
        strata=(FleetStratum(name="A", key="0" * 8, facts={"cpu": "A"}, measured=6, known=6, share=1.0),),
        left_out=(LeftOutHost(host="h9", why="quarantined", reason="its own A/A"),),
        comparisons=(
            FleetComparison(
                cell="chase", arm="thp", baseline="base", metric=METRIC,
                hosts=tuple(host(f"h{number}") for number in range(1, 7)), strata=(effect(),), fleet=None,
            ),
        ),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def of_many_hosts() -> FleetResults:
    """Two classes of 40 hosts each, with the names and the numbers that a fleet has."""
    names = [f"rack{number:02d}-node-{number % 7}.row-3" for number in range(80)]
    classes = ("AMD EPYC 9654 96-Core Processor, 6.12.0-amd64", "Intel(R) Xeon(R) Platinum 8480+, 6.1.0-28-amd64")
    hosts = tuple(
        host(
            name, 0.9 + 0.002 * (number % 40), stratum=classes[number // 40], low=0.7 + 0.002 * (number % 40), high=1.1
        )
        for number, name in enumerate(names)
    )
    strata = (
        effect(classes[0], asked=40, hosts=40),
        effect(classes[1], asked=40, hosts=40, verdict="undecided", high=1.01, next_high=1.2),
    )
    (one,) = results().comparisons
    compared = msgspec.structs.replace(one, hosts=hosts, strata=strata, fleet=effect("", asked=80, hosts=80))
    (known, *_), (kind, *_) = results().hosts, results().strata
    return results(
        comparisons=(compared, msgspec.structs.replace(compared, arm="hugetlb-2m", cell="redis value=4k clients=50")),
        hosts=tuple(msgspec.structs.replace(known, host=name, stratum=classes[0]) for name in names),
        strata=tuple(
            msgspec.structs.replace(kind, name=name, facts={"cpu": name, "kernel": "6.12"}) for name in classes
        ),
    )


def changed(one: FleetComparison, **changes: object) -> FleetResults:
    return results(comparisons=(msgspec.structs.replace(one, **changes),))


def test_a_class_of_few_hosts_says_what_it_lacks() -> None:
    (one,) = results().comparisons
    alone = effect(
        asked=1, hosts=1, verdict="none", ratio=None, low=None, high=None, next_low=None, next_high=None,
        reason="one host speaks for itself: a typical effect takes two at least",
    )  # fmt: skip
    (first, _) = fleet.details(msgspec.structs.replace(one, hosts=(host("h1"),), strata=(alone,)))
    assert first == (
        "A: no answer. Of 1 host by themselves: 1 better. One host speaks for itself: a typical effect takes two at "
        "least. Too few of its hosts measured to say what another one will see: that takes 5."
    )


def test_the_sections_hold_hosts_classes_and_who_was_left_out() -> None:
    document = fleet.report(results())
    text = markdown(document)
    for said in (
        "Does it hold on this fleet?", "1. chase: thp against base", "Hosts left out", "its own A/A",
        "Classes of hosts", "leave one host out",
        "| A | −10.0% | h1 | −9.0% |", "1.0% (0.0% to 3.0%)",
        "\\>1e100", "chance of \\>99.9%",
    ):  # fmt: skip
        assert said in text, said
    first = document.sections[0].blocks[0]
    assert isinstance(first, Headline)
    assert first.text == "`thp` is better than `base` on the middle host of this fleet: wall_s is 10.0% lower there."
    assert first.lines == (
        "A: better on a typical host, wall_s 10.0% lower (what was measured leaves room for 8.0% to 12.0% lower). Of 6 "
        "hosts by themselves: 6 better. Another host of this class will most likely see 7.0% to 13.0% lower; it is "
        "better there with a chance of >99.9%.",
        "wall_s is in s, lower is better: time of a run.",
    )
    assert "The chance that any of these answers is wrong is at most 1%" in text
    assert "exact terms" not in text
    assert [figure.key for figure in figures(document)] == ["forest-1"]
    assert "h9" in printed(document)


def told(found: FleetResults) -> str:
    """The section of the answer on the page, without what is behind a line."""
    shown = html(fleet.report(found), {})
    (section,) = re.findall(r'<section id="answer">.*?</section>', shown, re.DOTALL)
    return words(header(shown) + re.sub(r"<details>.*?</details>", "", section, flags=re.DOTALL))


def test_the_first_screen_has_no_word_of_statistics() -> None:
    (one,) = results().comparisons
    alone = effect(asked=1, hosts=1, verdict="none", ratio=None, low=None, high=None, next_low=None, next_high=None)
    seen = [
        told(made)
        for made in (
            *(results(), of_many_hosts(), changed(one, strata=(alone,))),
            *(changed(one, strata=(effect(verdict=verdict),)) for verdict in ("worse", "equivalent", "undecided")),
        )
    ]
    for text in seen:
        assert JARGON.findall(text) == [], text
        assert "wrong is at most 1%" in text
    assert "No answer on thp against base" in seen[2] and "that takes 5" in seen[2]
    assert "thp is worse than base on the middle host of this fleet" in seen[3]
    assert "thp makes no difference that matters on the middle host of this fleet, against base." in seen[4]
    assert "whether thp is better than base on this fleet cannot be told yet" in seen[5]


def test_the_forest_has_hosts_the_typical_effect_and_the_next_host() -> None:
    (one,) = results().comparisons
    spec = known(forest(one, "#123456", 0.005))
    rows = spec["data"]["values"]
    assert [row["host"] for row in rows] == ["typical effect", "next host", "h1", "h2", "h3", "h4", "h5", "h6"]
    assert (rows[1]["low"], rows[1]["high"], rows[1]["ratio"]) == (0.87, 0.93, None)
    nothing = msgspec.structs.replace(one, hosts=(host("h1", None),), strata=(effect(ratio=None, next_low=None),))
    assert forest(nothing, "#123456", 0.005) is None


def test_of_many_hosts_those_that_lie_furthest_are_drawn() -> None:
    (one,) = results().comparisons
    many = tuple(host(f"h{number}", 0.9 + number / 1000) for number in range(100))
    rows = known(forest(msgspec.structs.replace(one, hosts=many), "#123456", 0.005))["data"]["values"]
    assert len(rows) == MOST + 2
    assert "the 30 furthest" in rows[0]["stratum"] and rows[-1]["host"] == "h99"


def test_a_figure_and_a_page_are_written_whole(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    paths = fleet.write(results(), folder)
    assert {"html", "markdown", "json", "forest-1.svg"} == set(paths)
    assert "<svg" in paths["html"].read_text(encoding="utf-8")
    assert "next host" in paths["forest-1.svg"].read_text(encoding="utf-8")
