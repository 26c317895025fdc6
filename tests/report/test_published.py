"""Published figures beside measured ones."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hugewise import published as sources
from hugewise.model.reason import Crossed
from hugewise.model.results import Beside, Results
from hugewise.report.data_files import report_json
from hugewise.report.document import Line, Table
from hugewise.report.reasons import worded
from hugewise.report.sections import beside
from hugewise.report.write import report
from tests.build import known
from tests.build.restated import EVERY, lkml, lpc, percona_2018, percona_2019, redhat
from tests.build.results import HOSTILE
from tests.report.told import page, terminal

GOLDEN = Path(__file__).parents[1] / "golden" / "beside.html"
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def of(results: Results) -> Beside:
    return known(results.beside)


def tokens(text: str) -> set[float]:
    return {float(found.replace(",", "")) for found in _NUMBER.findall(text)}


def published_columns(table: Table) -> Iterator[str]:
    """Every entry that a reader takes for published."""
    columns = [n for n, name in enumerate(table.head) if name.startswith("published")]
    assert columns == list(range(len(columns)))  # they stand together, before the measured ones
    for row in table.rows:
        yield from (row[n] for n in columns)


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_no_number_is_shown_as_published_that_the_source_does_not_hold(make: Any) -> None:
    found = of(make())
    source = Path(sources.__file__).with_name(f"{found.name}.toml").read_text(encoding="utf-8")
    held = tokens(source)
    held |= {round(100 * float(one), 6) for one in re.findall(r"confidence = (\S+)", source)}  # shown in percent
    for table in beside.tables(found):
        for entry in published_columns(table):
            assert tokens(entry) <= held, entry
    names = {name for point in found.points for name in (point.cell, point.policy)}
    names |= {level.cell for finding in found.findings for level in finding.measured}
    names |= {finding.policy for finding in found.findings}
    own = re.compile("|".join(re.escape(name) for name in sorted(filter(None, names), key=len, reverse=True)) or "$^")
    for line in (*beside.remarks(found), *(line.partition("; here")[0] for line in beside.judged(found))):
        assert tokens(own.sub("", line)) <= held, line


def test_the_section_names_the_source_and_both_machines() -> None:
    results = redhat()
    (section,) = (one for one in report(results).sections if one.title == "Published beside measured")
    lines = " ".join(one.text for one in section.blocks if isinstance(one, Line))
    assert "Red Hat Developer, 2021-04-27." in lines
    assert "Published on: AMD Ryzen Threadripper 2950X" in lines
    assert "Measured on: Example 9000, kernel 6.18.0. Machine and kernel differ" in lines
    assert "The source does not give: the samples themselves" in lines
    entries = {entry for one in section.blocks if isinstance(one, Table) for row in one.rows for entry in row}
    assert any("thp 131.55 ± 0.24 s (99.99%), n 5,000; shp1g 128.34 ± 0.23 s (99.99%), n 5,000" in e for e in entries)
    assert msgspec.json.decode(report_json(results), type=Results).beside == msgspec.convert(
        worded(results.beside), Beside
    )


def test_the_terminal_shows_what_was_judged() -> None:
    text = " ".join(terminal(replace(lpc(), guests=None, attempts=(), earlier=())).split())
    several = list(beside.judged(of(lpc())))
    assert f"Beside the published figures: {several[0]}"[:100].replace("−", "-") in text
    assert len(several) > 1 and "p99_latency" not in text  # not judged: in the report
    assert not list(beside.judged(of(lkml())))
    assert "published" not in terminal(lkml())


def hostile() -> Results:
    """The study of 2019 with a cell, a policy and a reason that attack the reader."""
    found = percona_2019()
    told = of(found)
    first = told.findings[0]
    level = replace(first.measured[0], cell=f"tpcb {HOSTILE}", measured=None, reason=HOSTILE)
    attacked = replace(first, policy=HOSTILE, measured=(level,), reason=HOSTILE)
    return replace(found, beside=replace(told, findings=(attacked, *told.findings[1:]), here_machine=HOSTILE))


def test_the_section_of_the_page_is_golden_and_escaped() -> None:
    section = known(re.search(r'<section id="beside">.*?</section>\n', page(hostile()), re.DOTALL))
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        GOLDEN.write_text(section[0], encoding="utf-8")
    assert section[0] == GOLDEN.read_text(encoding="utf-8")
    assert "&lt;script&gt;" in section[0]


def test_a_finding_is_told_in_words_and_a_setting_with_what_was_delivered() -> None:
    found = of(percona_2018())
    first = next(one for one in found.findings if any(level.measured for level in one.measured))
    told = replace(found, points=(), findings=(replace(first, reason=Crossed(11)),))
    (section,) = beside.beside(told)
    (shown,) = (block for block in section.blocks if isinstance(block, Table))
    signs = [row[-1] for row in shown.rows]
    plain = "from pair 11 on the difference is too consistent for chance; this holds for this run, not for other days"
    assert signs[-1] == f"{first.agreement}: {plain}"
    found = of(lpc())
    point = next(p for p in found.points if p.measured is not None and p.measured.verdict == "better")
    setting = replace(point, measured=replace(known(point.measured), judged="setting", delivered_share=0.031))
    (table,) = beside.tables(replace(found, points=(setting,), findings=()))
    assert "▲ better, of the setting (3.1% delivered)" in table.rows[0]
