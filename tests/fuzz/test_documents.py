"""Study files, values on the command line, libvirt's XML and JSON that are broken: a value, or the one error."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hugewise
from hugewise import reading
from hugewise.cli.main import main
from hugewise.errors import StudyError, UserError
from hugewise.guests import domain_study
from hugewise.machine import domain
from hugewise.reading import UnreadableError
from hugewise.study.load import load
from tests.fuzz.inputs import broken, fuzzed, in_time, kept, varied

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "studies").glob("*.toml"))
DOMAIN = b"""<?xml version="1.0" encoding="UTF-8"?>
<domain type='kvm'><name>x</name><memory unit='KiB'>1048576</memory>
<memoryBacking><hugepages><page size='1' unit='G' nodeset='0-3,^2'/></hugepages><nosharepages/><locked/>
<source type='memfd'/><access mode='shared'/><allocation mode='immediate' threads='8'/><discard/></memoryBacking>
<numatune><memory mode='strict' nodeset='0'/><memnode cellid='0' mode='strict' nodeset='0'/></numatune></domain>
"""


@fuzzed(40)
@given(content=broken(STUDIES))
def test_a_broken_study_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    try:
        with in_time():
            load(path)
    except StudyError as error:
        assert str(path) in error.message and error.hint and len(error.message) < 2000
    except UserError as error:
        assert error.hint


@fuzzed(25)
@given(content=varied(STUDIES) | broken([ROOT / "studies" / "demo.toml"]))
def test_a_broken_study_is_planned_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    try:
        with in_time():
            hugewise.make_plan(load(path))
    except UserError as error:
        assert error.message


@kept("study")
def test_what_once_broke_a_study_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--dry-run", str(path)])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and str(path) in told and "cure: " in told


@fuzzed(50)
@given(content=broken([DOMAIN]))
def test_a_broken_domain_is_read_or_refused(content: bytes) -> None:
    try:
        with in_time():
            found = domain.read(domain.parse(content, "domain.xml"), "domain.xml")
            domain_study.backing_toml(domain_study.domain_backing(found, 2 << 20))
    except UserError as error:
        assert error.message.startswith("domain.xml:") and error.hint


@kept("domain")
def test_what_once_broke_a_domain_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["guest", "study", str(path), "--workload", "fault"])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and str(path) in told and "cure: " in told


def test_text_xml_of_many_pieces_takes_no_longer_for_each(tmp_path: Path) -> None:
    """Eight million bytes of text in a million pieces: were each added to the ones before it, that took minutes."""
    with in_time():
        domain.parse(b"<domain>" + b"a<!---->" * 1_000_000 + b"</domain>", "domain.xml")


@fuzzed(50)
@given(content=broken([b'{"a": [1, 2.5, {"b": null, "c": "\\u00e4"}], "d": true}', b"[[[[]]]]"]))
def test_broken_json_is_a_value_or_unreadable(content: bytes) -> None:
    try:
        with in_time():
            found = reading.json(content)
    except UnreadableError as error:
        assert error.reason and (error.line is None or error.line >= 1)
    else:
        repr(found)


def test_a_number_is_finite_or_unreadable() -> None:
    written = st.one_of(
        st.text(st.sampled_from("0123456789.eE+-_ nNaAiIfFxX\u0663"), max_size=30),
        st.floats().map(repr),
        st.integers().map(str),
        st.integers(1, 20_000).map(lambda count: "1" * count + "x"),
    )

    @fuzzed(50)
    @given(written, st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.text(), st.just(10**400)))
    def every(text: str, value: object) -> None:
        for read in (lambda: reading.figure(text), lambda: reading.whole(text), lambda: reading.number(value)):
            try:
                with in_time():
                    found = read()
            except UnreadableError as error:
                assert len(error.reason) < 200
            else:
                assert abs(found) < float("inf")

    every()


def test_a_file_that_is_none_is_never_waited_for(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 43)
    with in_time():
        for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero"), sparse, tmp_path / "absent", tmp_path / "a\0b"):
            with pytest.raises(UnreadableError):
                reading.content(path)
        assert reading.content(sparse, 10, part="tail") == b"\0" * 10
