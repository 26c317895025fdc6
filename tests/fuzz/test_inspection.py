"""What `hugewise verify` reads of a process, broken: a value, in time, and never an error."""

import io
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hugewise.errors import UserError
from hugewise.inspection.allocator import allocator, read_program, tunable
from hugewise.inspection.captured import inspect_file
from hugewise.inspection.targets import subject
from hugewise.machine.smaps import backed_mappings
from tests.build.hosts import Files, stat_text
from tests.fuzz.inputs import broken, fuzzed, in_time
from tests.machine.test_smaps import RECORDED

STAT = stat_text(10, "a").encode()
STATUS = b"Name:\tx\nState:\tS (x)\nTgid:\t10\nPid:\t10\nVmRSS:\t8 kB\n"
CGROUP = b"12:pids:/\n1:name=systemd:/system.slice/redis.service\n0::/system.slice/redis.service/x\n"


@fuzzed(40)
@given(content=broken([RECORDED]))
def test_broken_smaps_are_read(content: bytes) -> None:
    with in_time():
        for mapping in backed_mappings(io.BytesIO(content)):
            assert mapping.room(2 << 20) >= 0
            assert mapping.called


def test_a_broken_program_is_read() -> None:
    head = Path(sys.executable).read_bytes()[:4096]

    @fuzzed(40)
    @given(broken([head]), st.text(max_size=80))
    def every(content: bytes, text: str) -> None:
        with in_time():
            found = read_program(io.BytesIO(content))
            environment = {"GLIBC_TUNABLES": text, "LD_PRELOAD": text}
            assert allocator(found, [text, f"/{text}"], environment, secure=None).name
            assert (tunable(environment) or 0) >= 0

    every()


@fuzzed(40)
@given(stat=broken([STAT]), status=broken([STATUS]), cgroup=broken([CGROUP]), asked=st.sampled_from(["10", "redis"]))
def test_broken_files_of_processes_name_somebody_or_nobody(
    stat: bytes, status: bytes, cgroup: bytes, asked: str
) -> None:
    texts = {"stat": stat, "status": status, "cgroup": cgroup}
    host = Files({f"/proc/10/{name}": text.decode("utf-8", "replace") for name, text in texts.items()})
    with in_time():
        try:
            assert subject(asked, host).processes
        except UserError as error:
            assert error.hint


def test_a_captured_smaps_is_read_or_refused(tmp_path: Path) -> None:
    whole = (
        b"7f2a00000000-7f2a04000000 rw-p 00000000 00:00 0 \nSize: 65536 kB\nMMUPageSize: 4 kB\nRss: 65536 kB\n"
        b"Anonymous: 65536 kB\nAnonHugePages: 32768 kB\nTHPeligible: 1\nVmFlags: rd wr hg \n"
    )
    path = tmp_path / "smaps"

    @fuzzed(200)
    @given(st.binary(max_size=60), st.integers(0, len(whole)), st.integers(0, len(whole)))
    def every(inserted: bytes, at: int, end: int) -> None:
        path.write_bytes(whole[:at] + inserted + whole[end:])
        with in_time():
            try:
                found = inspect_file(path)
            except UserError as error:
                assert str(path) in error.message and error.hint
            else:
                assert found.bytes >= 0 and all(one.bytes is None or one.bytes > 0 for one in found.lost)

    every()
