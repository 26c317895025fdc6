"""A captured smaps: what it says of huge pages, what it does not, and what is no smaps."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hugewise.cli.main import cli
from hugewise.errors import UserError
from hugewise.inspection.captured import inspect_file

MIB = 1 << 20


def mapping(
    *,
    start: int = 0x7F2A00000000,
    mib: int = 64,
    anonymous: int = 64,
    huge: int = 32,
    eligible: str = "1",
    flags: str = "",
) -> str:
    """A mapping of 64 MiB, of which 32 MiB are huge."""
    seen = f"THPeligible:    {eligible}\n" if eligible else ""
    return (
        f"{start:x}-{start + mib * MIB:x} rw-p 00000000 00:00 0 \n"
        f"Size:            {mib * 1024} kB\nKernelPageSize:        4 kB\nMMUPageSize:           4 kB\n"
        f"Rss:             {anonymous * 1024} kB\nPss:             {anonymous * 1024} kB\n"
        f"Anonymous:       {anonymous * 1024} kB\nAnonHugePages:   {huge * 1024} kB\nSwap:                  0 kB\n"
        f"{seen}VmFlags: rd wr mr mw me ac sd {flags}\n"
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "smaps.txt"


def test_what_the_file_says(file: Path) -> None:
    file.write_text(mapping(flags="hg"))
    found = inspect_file(file)
    assert (found.source, found.bytes, found.processes, found.rules) == ("capture", 64 * MIB, (), ())
    assert {(one.pages, one.size): one.bytes for one in found.sizes} == {
        ("anon", 2 * MIB): 32 * MIB,
        ("unproven", None): 32 * MIB,
    }
    (lost,) = found.lost
    assert (lost.id, lost.size, lost.bytes) == ("eligible-not-backed", 2 * MIB, 32 * MIB)
    assert found.mappings[0].advised == "huge"
    assert any("which rules of huge pages were in force" in note for note in found.notes)


@pytest.mark.parametrize(
    ("given", "reason", "text"),
    [
        ({"eligible": "0"}, "not-eligible", "THPeligible: 0), and it was not advised"),
        ({"eligible": "0", "flags": "hg"}, "not-eligible", "THPeligible: 0), and it was advised"),
        ({"eligible": "0", "flags": "nh"}, "advised-against", ""),
        ({"eligible": ""}, "not-eligible", "whether it was eligible is not in the file"),
        ({"huge": 64}, None, ""),
        ({"mib": 1, "anonymous": 1, "huge": 0}, None, ""),
    ],
)
def test_why_it_is_in_base_pages(given: dict[str, object], reason: str | None, text: str, file: Path) -> None:
    file.write_text(mapping(**given))  # type: ignore[arg-type]
    lost = inspect_file(file).lost
    assert [one.id for one in lost] == ([] if reason is None else [reason])
    assert all(text in one.text for one in lost)


def test_pasted_with_other_line_ends_and_blanks_it_is_the_same(file: Path) -> None:
    plain = mapping() + mapping(start=0x7F3A00000000, flags="hg")
    file.write_text(plain)
    whole = inspect_file(file)
    file.write_bytes("\r\n".join(f"    {line}" for line in plain.split("\n")).encode())
    pasted = inspect_file(file)
    assert (pasted.sizes, pasted.lost, pasted.mappings) == (whole.sizes, whole.lost, whole.mappings)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Anonymous:       65536 kB", "Anonymous:       some kB", ":7: Anonymous: 'some kB' is no number of kB"),
        ("Rss:             65536 kB", "Rss:             1 kB", ":7: Anonymous is 64 MiB, and Rss, of which"),
        ("AnonHugePages:   32768 kB", "AnonHugePages:   99999 kB", ":8: AnonHugePages is 97.66 MiB, and Anonymous"),
        ("Size:            65536 kB", "Size:            131072 kB", ":2: Size is 128 MiB, and the addresses in line 1"),
    ],
)
def test_what_contradicts_itself_is_not_believed(old: str, new: str, said: str, file: Path) -> None:
    file.write_text(mapping().replace(old, new))
    with pytest.raises(UserError) as caught:
        inspect_file(file)
    assert f"{file}{said}" in caught.value.message
    assert "cat /proc/PID/smaps > FILE" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["", "no smaps at all\n", "Rss: 4 kB\n"])
def test_what_is_no_smaps(text: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(UserError, match="it has no mapping as /proc/PID/smaps has them"):
        inspect_file(file)


def test_on_the_command_line(file: Path) -> None:
    file.write_text(mapping())
    done = CliRunner().invoke(cli, ["inspect", "--smaps", str(file), "--json"])
    assert json.loads(done.stdout)["source"] == "capture"
    assert "from a captured smaps" in CliRunner().invoke(cli, ["inspect", "--smaps", str(file)]).stdout
    for more, said in ((["--watch"], "--watch looks at a process that runs"), (["1"], "name processes in one way")):
        error = CliRunner().invoke(cli, ["inspect", "--smaps", str(file), *more])
        assert error.exception is not None and said in str(error.exception)


def test_a_file_in_the_place_of_a_process_is_told_the_option(file: Path) -> None:
    file.write_text(mapping())
    error = CliRunner().invoke(cli, ["inspect", str(file)])
    assert isinstance(error.exception, UserError)
    assert error.exception.hint == f"a captured smaps is read by: hugewise inspect --smaps {file}"

    error = CliRunner().invoke(cli, ["verify", str(file)])
    assert isinstance(error.exception, UserError)
    assert error.exception.hint == f"a captured smaps is read by: hugewise inspect --smaps {file}"


def test_the_smaps_of_this_process() -> None:
    found = inspect_file(Path("/proc/self/smaps"))
    assert found.bytes > 0
    with pytest.raises(UserError, match="it is no file"):
        inspect_file(Path("/proc/self"))
