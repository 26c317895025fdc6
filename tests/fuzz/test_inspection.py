"""What `hugewise verify` reads of a process, broken: a value, in time, and never an error."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hugewise.errors import UserError
from hugewise.inspection.allocator import allocator, read_program, tunable
from hugewise.inspection.smaps import backed_mappings
from hugewise.inspection.targets import subject
from tests.build.hosts import Files, stat_text
from tests.fuzz.inputs import broken, fuzzed, in_time
from tests.inspection.test_smaps import RECORDED

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
