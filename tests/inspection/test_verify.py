"""Real processes under the settings of this host: what backs them is found, and why not more. Nothing is turned."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from hugewise import beneath
from hugewise.errors import UserError
from hugewise.host.local_host import LocalHost
from hugewise.inspection.verify import Verified, verify
from hugewise.model.pages import PageSizes
from tests.build import known
from tests.inspection.running import SIZE, built, running, under
from tests.requirements import need, need_program, need_root
from tests.wait import until

pytestmark = pytest.mark.looks

HOST = LocalHost()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """That every account may enter, as those of pytest are not."""
    made = Path(tempfile.mkdtemp(prefix="hw-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    beneath.discard(made)


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    return built(folder)


@pytest.fixture(scope="module")
def static(folder: Path) -> Path:
    return built(folder, "-static")


def found(pid: int, policy: str = "as-is") -> Verified:
    return verify(str(pid), HOST, policy)


def reasons(one: Verified) -> dict[str, int | None]:
    return {reason.id: reason.bytes for reason in one.reasons}


def near(bytes_: int | None) -> bool:
    """About the memory that the program was told to have."""
    return bytes_ is not None and 0.95 * SIZE <= bytes_ <= 1.05 * SIZE


@under("madvise", "always")
def test_memory_that_was_advised_first_is_backed(program: Path) -> None:
    with running(program, "first") as pid:
        one = found(pid, "thp")
        assert one.delivered is True
        assert one.share is not None and one.share > 0.95
        assert one.coverage["anon:2097152"] == SIZE
        (largest, *_) = one.mappings
        assert (largest.huge, largest.advised, largest.eligible) == (SIZE, True, True)
        assert found(pid, "base").delivered is False
        assert reasons(found(pid, "base")) == {"larger-pages": SIZE}


@under("madvise")
def test_memory_that_was_advised_later_is_eligible_and_waits_for_khugepaged(program: Path) -> None:
    with running(program, "after") as pid:
        one = found(pid, "thp")
        if one.delivered is True:  # khugepaged has been here already
            assert one.coverage["anon:2097152"] >= 0.95 * SIZE
            return
        assert one.delivered is False
        waiting = reasons(one)["eligible-not-backed"]
        assert waiting is not None
        assert waiting + one.coverage.get("anon:2097152", 0) >= SIZE
        (text,) = [reason.text for reason in one.reasons if reason.id == "eligible-not-backed"]
        assert "in blocks that are touched throughout" in text
        assert "khugepaged" in text


@under("madvise")
def test_memory_that_nobody_advised_has_base_pages_by_the_rule_madvise(program: Path) -> None:
    with running(program, "plain") as pid:
        one = found(pid, "thp")
        assert (one.delivered, near(reasons(one)["not-advised"])) == (False, True)
        assert found(pid, "base").delivered is True


@under()
def test_a_process_that_switches_them_off_for_itself_is_found(program: Path) -> None:
    with running(program, "off") as pid:
        one = found(pid, "thp")
        assert (one.delivered, near(reasons(one)["disabled-by-itself"])) == (False, True)
        assert one.processes[0].thp_disabled is True
        assert found(pid, "base").delivered is True


@under("always")
def test_except_advised_can_only_be_inferred(program: Path) -> None:
    with running(program, "except-advised") as pid:
        one = found(pid, "thp")
        assert (one.delivered, near(reasons(one)["except-advised"])) == (False, True)
        assert one.processes[0].thp_disabled is False  # what the status says


@under("madvise")
def test_the_heap_of_glibc_is_backed_by_its_tunable(program: Path) -> None:
    with running(program, "malloc", environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}) as pid:
        one = found(pid)
        assert one.processes[0].tunable == 1
        assert one.processes[0].allocator == "glibc"
        assert one.coverage.get("anon:2097152", 0) >= SIZE / 2
        assert "tunable-ignored" not in reasons(one)
    with running(program, "malloc") as pid:
        one = found(pid, "thp-advised")
        assert one.delivered is False
        assert "tunable-missing" in reasons(one)


@under("never", "always")
def test_a_tunable_that_glibc_does_not_heed_is_named(program: Path) -> None:
    with running(program, "malloc", environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}) as pid:
        assert "tunable-ignored" in reasons(found(pid))


def test_a_static_program_has_the_tunable_of_the_glibc_in_it(static: Path) -> None:
    """Its heap is mapped anew in pieces under hugetlb=2, whether there is a pool or not: so glibc has read it."""
    with running(static, "malloc", environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"}) as pid:
        one = found(pid)
        assert one.processes[0].allocator == "glibc (static)"
        assert "tunable-ignored" not in reasons(one)
        heap = [mapping.memory for mapping in one.mappings if mapping.name == "[heap]"]
        assert sum(heap) < 1 << 20


@under()
def test_a_pool_that_is_short_is_named(program: Path) -> None:
    sizes = PageSizes.discover(HOST)
    need(2 << 20 in sizes.hugetlb, "a pool of 2m pages")
    free = int(HOST.read("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"))
    more = int(HOST.read("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages"))
    need(free + more < 16, "a pool of 2m pages that is short (fewer than 16 free)")
    with running(program, "malloc", environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"}) as pid:
        one = found(pid, "hugetlb-2m")
        assert one.delivered is False
        if free == 0:
            assert (reasons(one)["pool-short"] or 0) >= 0.9 * SIZE
            assert "without a word" in " ".join(reason.text for reason in one.reasons)
    with running(program, "plain") as pid:
        assert {"tunable-missing"} <= reasons(found(pid, "hugetlb-2m")).keys()


@under()
def test_children_are_looked_at_too(program: Path) -> None:
    with running(program, "fork") as pid:

        def both() -> Verified | None:
            one = found(pid)
            return one if len(one.processes) == 2 and sum(one.coverage.values()) > 1.9 * SIZE else None

        one = known(until(both, "its child has its memory"))
        assert one.processes[0].pid == pid
        assert sum(one.coverage.values()) > 1.9 * SIZE


@pytest.mark.parametrize(
    "words", [["-psecret1"], ["--password=secret1"], ["postgresql://u:secret1@h"], ["plain", "secret1"], ["K=secret1"]]
)
def test_of_a_command_line_only_the_program_is_told(program: Path, words: list[str]) -> None:
    """Passwords stand there, and what verify says is shown to others."""
    with running(program, "idle", *words) as pid:
        one = found(pid)
    assert "secret1" not in repr(one)
    assert one.processes[0].command == f"{program} idle"


def test_a_process_lives_as_long_as_a_thread_of_it(folder: Path) -> None:
    source = folder / "threads.c"
    source.write_text(
        "#include <pthread.h>\n#include <stdio.h>\n#include <string.h>\n#include <sys/mman.h>\n#include <unistd.h>\n"
        "static void *run(void *none) { char *all = mmap(0, 64 << 20, 3, 34, -1, 0); memset(all, 1, 64 << 20);"
        'puts("ready"); fflush(stdout); pause(); return none; }\n'
        "int main(void) { pthread_t one; pthread_create(&one, 0, run, 0); pthread_exit(0); }\n"
    )
    compiler = need_program("gcc", "gcc libc6-dev")
    subprocess.run([compiler, "-pthread", "-o", folder / "threads", source], check=True)
    with running(folder / "threads") as pid:
        until(lambda: "\nState:\tZ" in status(str(pid)), "its first thread has ended")
        one = found(pid)
    assert one.processes[0].pid == pid
    assert sum(one.coverage.values()) > SIZE


def test_processes_that_come_and_go_are_no_trouble() -> None:
    """A shell that starts programs without end: whatever is caught in the middle is left out."""
    shell = subprocess.Popen(["sh", "-c", "while :; do /bin/true; done"], process_group=0)
    try:
        for _ in range(20):
            one = found(shell.pid)
            assert one.processes[0].pid == shell.pid
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_memory_that_comes_and_goes_is_no_trouble(program: Path) -> None:
    with running(program, "churn") as pid:
        for _ in range(10):
            assert found(pid).processes[0].pid == pid


def status(name: str) -> str:
    try:
        return Path(f"/proc/{name}/status").read_text()
    except OSError:
        return ""


def test_a_policy_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="--policy nonsense: not a policy") as raised:
        found(os.getpid(), "nonsense")
    assert raised.value.hint is not None
    assert "thp" in raised.value.hint


def as_nobody(work: Callable[[], object]) -> dict[str, object]:
    """What `work` returns as an ordinary account, or the message of its UserError."""
    need_root()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            said: object = msgspec.to_builtins(work())
        except UserError as error:
            said = {"refused": error.message, "hint": error.hint}
        except BaseException as error:
            said = {"broken": repr(error)}
        with os.fdopen(writing, "wb") as out:
            out.write(json.dumps(said, default=str).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        answer = json.loads(told.read())
    os.waitpid(child, 0)
    assert isinstance(answer, dict)
    return answer


@under("madvise", "always")
def test_an_ordinary_user_is_told_of_their_own_process(program: Path) -> None:
    with running(program, "first", user=65534) as pid:
        told = as_nobody(lambda: verify(str(pid), LocalHost(), "thp"))
    assert told.get("delivered") is True, told
    assert told["source"] == "smaps"
    assert told["coverage"]["anon:2097152"] == SIZE  # type: ignore[index]


def test_an_ordinary_user_is_told_what_is_to_be_known_of_anothers(program: Path) -> None:
    with running(program, "off") as pid:
        told = as_nobody(lambda: verify(str(pid), LocalHost(), "thp"))
    assert told["hint"] == "call it as root: sudo"
    refused = str(told["refused"])
    assert f"the memory of {pid} cannot be looked at: it belongs to the account 0" in refused
    assert "transparent huge pages: has none" in refused
    assert "pages of pools: 0 kB" in refused


def test_a_setuid_program_is_known_by_how_it_was_begun(folder: Path, program: Path) -> None:
    need_root()
    private = folder / "setuid"
    private.write_bytes(program.read_bytes())
    os.chown(private, 1, 1)
    private.chmod(0o4755)
    mounted = os.statvfs(private).f_flag & os.ST_NOSUID
    need(not mounted, "a folder for tests whose file system heeds setuid")
    with running(private, "malloc", user=65534, environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"}) as pid:
        one = found(pid)
    assert "setuid" in " ".join(reason.text for reason in one.reasons if reason.id == "tunable-ignored")
