"""Reports of runs in guests: what they were, how kernels differ, counters and allocations, and no times under TCG."""

import csv
import io
import re
from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from hugewise.analysis.analysis import boots_of
from hugewise.model.design import qualified
from hugewise.model.metric import NOT_IN_EMULATION
from hugewise.model.results import Guests, Results
from hugewise.report import data_files as tables
from hugewise.report.data_files import report_json
from hugewise.report.document import Table
from hugewise.report.reasons import in_words
from hugewise.report.sections import beside, guests
from hugewise.report.sections.effects import changes_table
from hugewise.report.sentences import run_line
from hugewise.report.write import report
from tests.build import known
from tests.build.booted import WHY, lkml, lpc, recorded
from tests.build.restated import lpc as on_the_host
from tests.report.test_write import Page
from tests.report.told import page, rows, terminal

MAKERS = pytest.mark.parametrize("make", [recorded, lpc, lkml])


def of(results: Results) -> Guests:
    return known(results.guests)


def test_each_arm_has_its_row_with_the_smallest_proven_share() -> None:
    found = rows(guests.arms_table(of(recorded())))
    assert list(found) == ["base", "64k", "small-pages"]
    assert found["64k"][:5] == (
        "mthp-64k",
        "debian: 6.12.107+deb13-cloud-amd64, SHA-256 d1bc2c60a78a…",
        "–",
        "thp",
        "100% (n 3)",
    )
    assert found["small-pages"][3] == "base"
    assert found["base"][5:] == (
        "max",
        "1",
        "256 MiB",
        "TCG",
        "7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)",
        "agent alone",
    )
    shares = {arm: row[4] for arm, row in rows(guests.arms_table(of(lpc()))).items()}
    assert sorted(shares.values()) == ["100% (n 24)"] * 5 + ["99.5% (n 24)"]


def test_backings_are_told_with_what_matters_of_them() -> None:
    some = of(recorded())
    backing = replace(some.arms[0].backing, pages="hugetlb-1g", source="file", preallocate=False, nodes=(0, 1))
    table = guests.arms_table(replace(some, arms=(replace(some.arms[0], backing=backing),)))
    assert table.rows[0][4] == "hugetlb-1g, file, as it is touched, nodes 0, 1"


def test_kernels_have_origin_hash_and_the_count_of_their_differences() -> None:
    assert guests.kernels_table(of(recorded())) is None  # a run from before it was kept
    found = rows(guests.kernels_table(of(lpc())))
    assert found["4k"][-1] == "baseline"
    assert found["16k"][:2] == ("6.12.0-16k", "16k")
    assert found["16k"][-1] == "2"
    assert found["debian"][-2:] == ("Debian package linux-image", "1,200")
    unknown = replace(of(lpc()).kernels[1], differs=None)
    assert rows(guests.kernels_table(replace(of(lpc()), kernels=(unknown,))))["16k"][-1].startswith("not known")


def test_differences_are_lists_with_their_count_and_long_ones_are_cut() -> None:
    few, one, many = guests.differences(of(lpc()))
    assert (few.summary, one.summary) == (
        "Configuration of 16k against 4k: 2 options differ",
        "Configuration of 64k against 4k: 1 option differs",
    )
    (table,) = few.blocks
    assert isinstance(table, Table)
    assert table.rows == (("CONFIG_ARM64_16K_PAGES", "n", "y"), ("CONFIG_ARM64_4K_PAGES", "y", "n"))
    assert many.summary.endswith("1,200 options differ, of which the first 500 stand here (all are in report.json)")
    (cut,) = many.blocks
    assert isinstance(cut, Table) and len(cut.rows) == 500


@MAKERS
def test_emulation_is_explained_once_and_no_table_has_rows_of_dashes_for_it(make: Callable[[], Results]) -> None:
    results = make()
    text = page(results).replace("&#39;", "'")
    assert text.count("There is therefore no time, throughput, TLB or cycle figure in this report.") == 1
    assert WHY in text
    assert NOT_IN_EMULATION not in text
    for cell in results.cells:
        names = rows(changes_table(results, cell))
        assert names and not {"wall_s", "cpu_s", "cycles"} & set(names)


@MAKERS
def test_the_page_is_whole_and_says_nothing_of_time(make: Callable[[], Results]) -> None:
    read = Page(page(make()))
    assert read.open == []
    ids = list(read.values("id"))
    assert len(ids) == len(set(ids))
    assert {value.removeprefix("#") for value in read.values("href")} <= set(ids)
    told = " ".join(read.texts)
    assert not re.search(r"\d (ms|µs|ns|ops/s|bytes/s|faults/s)\b", told.partition("Run and host")[0])


def test_instruction_counts_are_valid_where_they_are_counted_only() -> None:
    assert "instruction counts" in " ".join(guests.introduction(of(lkml())))
    assert "instruction counts" not in " ".join(guests.introduction(of(lpc())))
    told = " ".join(guests.introduction(replace(of(lpc()), accelerator="kvm", why="a guest booted")))
    assert told == "Every attempt ran in a guest of its own, under KVM. Reason: a guest booted."


def test_counts_stand_beside_the_published_ones_with_their_distance() -> None:
    results = lpc()
    assert results.beside is not None
    found = {(p.quantity, p.policy): p for p in results.beside.points}
    near, far = found["page_faults", "64k"], found["page_faults", "64k-base"]
    assert near.points == pytest.approx(4.0)  # −70% here, −74% published
    assert far.points == pytest.approx(-0.1)
    memory = found["memory_use_80_cores", "64k-base"]
    assert known(memory.measured).metric == "charged_peak_bytes"
    assert memory.points == pytest.approx(20 - 18)
    assert found["system_time", "64k"].points is None
    table = next(iter(beside.tables(results.beside)))
    place = table.head.index("difference")
    shown = {(row[0], row[4]): row[place] for row in table.rows}
    assert shown["memory_use_80_cores", "64k-base"] == "+2.0 points"
    moved = replace(far, points=-5.04)
    (marked,) = beside.tables(replace(results.beside, points=(moved,)))
    assert marked.rows[0][place] == "−5.0 points ✱"


def test_memory_is_compared_within_one_family_of_kernels() -> None:
    results = lpc()
    found = {(p.quantity, p.policy): p for p in known(results.beside).points}
    foreign = found["memory_use_80_cores", "debian"]
    assert foreign.measured is None
    assert "another family" in in_words(foreign.reason)
    assert found["page_faults", "debian"].measured is not None
    assert any("Memory of debian is not to be compared" in line for line in guests.remarks(of(results)))


def test_what_a_guest_had_not_the_same_in_all_attempts_is_said() -> None:
    arm = replace(of(lpc()).arms[0], varied={"qemu": ("7.2", "10.0")})
    told = list(guests.remarks(replace(of(lpc()), arms=(arm,), kernels=())))
    assert told == ["base: qemu was not the same in all attempts: 7.2; 10.0."]


def test_json_csv_and_terminal_have_the_guests() -> None:
    results = lpc()
    assert msgspec.json.decode(report_json(results), type=Results).guests == results.guests
    first = next(csv.DictReader(io.StringIO("".join(tables.attempt_lines(results)))))
    assert first["guest.accelerator"] == "tcg"
    assert first["guest.kernel_release"].startswith("6.12.0-")
    assert "guest.accelerator" not in next(tables.attempt_lines(on_the_host()))
    assert "Guests emulated (TCG): counts and sizes, and no times." in terminal(results)
    (row,) = (row for row in guests.arms_table(of(results)).rows if row[0] == "16k")
    assert (row[1], row[2][:5], row[4]) == ("16k", "16k: ", "thp")
    said = r"same sign; published change (within|larger|smaller)[^;:]*, \+4\.0 points"
    assert any(re.search(said, one) for one in beside.judged(known(results.beside)))


def test_policies_are_set_by_the_knobs_of_the_guests_whoever_runs_it() -> None:
    for results in (lpc(), replace(lpc(), mechanism="process")):
        assert run_line(results).endswith("policies set by settings of the whole system in their guests.")
    alone = on_the_host()
    assert run_line(alone).endswith("policies set by settings of the whole system (as root).")
    assert alone.guests is None
    assert "Guests" not in [section.title for section in report(alone).sections]


def test_boots_of_a_guest_that_stayed_are_counted_and_verdicts_are_for_these() -> None:
    one, *_ = recorded().attempts
    attempts = [replace(one, guest={**one.guest, "resident_boot": boot}) for boot in ("one", "one", "two")]
    assert (boots_of(attempts), boots_of([one])) == (2, 0)
    lines = list(guests.introduction(replace(of(recorded()), shared_boots=boots_of(attempts))))
    assert lines[0].startswith("The attempts ran in 2 boots of one guest, emulated by QEMU (TCG).")
    assert any("another boot begins with other memory" in line for line in lines)
    assert not any("another boot" in line for line in guests.introduction(of(recorded())))


def test_a_verdict_of_a_guest_that_stays_is_for_its_boots() -> None:
    (found, *_) = recorded().cells[0].comparisons
    once, twice, anew = (qualified(found, "sequential", None, boots) for boots in (1, 2, None))
    assert in_words(once.reason).endswith("it is for this boot of its guest: another may differ")
    assert "these 2 boots of its guest" in in_words(twice.reason)
    assert once.estimand == twice.estimand == f"{found.estimand}, within a boot of the guest that its attempts share"
    assert (once.verdict, once.ratio) == (found.verdict, found.ratio)
    assert anew == found
