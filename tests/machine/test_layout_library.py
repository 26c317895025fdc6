"""The layout library in real programs: what backs their heaps by /proc/PID/smaps, and that nothing else differs.

What needs huge pages is not run where the machine has switched them off.
"""

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from hugewise.model.pages import HUGETLB
from tests.machine.layouts import programs
from tests.machine.layouts.programs import HUGE, compiled, environment, library, ready, told
from tests.requirements import need, need_program
from tests.wait import until

pytestmark = pytest.mark.looks

MIB = 1 << 20


@pytest.fixture(scope="module")
def heap(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled("heap", tmp_path_factory.mktemp("heap"))


@pytest.fixture
def huge() -> Iterator[None]:
    """The machine gives huge pages to memory that is advised, before the test and after it."""
    need(programs.mode() in ("always", "madvise"), "transparent huge pages set to madvise or always")
    yield
    need(programs.mode() in ("always", "madvise"), "transparent huge pages that stay as they are during the test")


def region(report: Path) -> tuple[int, int]:
    """Where the heap of the one program that reported was laid out."""
    (line,) = told(report)
    begin, size = line["heap_from"], line["heap_bytes"]
    assert isinstance(begin, int)
    assert isinstance(size, int)
    assert begin > 0
    assert begin % HUGE == 0
    return begin, begin + size


def test_it_is_linked_with_nothing_and_gives_programs_nothing_but_mmap() -> None:
    with Path(library()).open("rb") as file:
        elf = ELFFile(file)
        dynamic, table = elf.get_section_by_name(".dynamic"), elf.get_section_by_name(".dynsym")
        assert isinstance(dynamic, DynamicSection)
        assert isinstance(table, SymbolTableSection)
        assert not [tag for tag in dynamic.iter_tags() if tag.entry.d_tag in ("DT_NEEDED", "DT_VERNEED", "DT_TEXTREL")]
        symbols = list(table.iter_symbols())
    named = {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"}
    asked = {each.name for each in symbols if each["st_shndx"] == "SHN_UNDEF" and each.name}
    weak = {each.name for each in symbols if each["st_info"]["bind"] == "STB_WEAK"}
    assert named == {"mmap", "mmap64"}
    assert asked - weak <= {"memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen"}


@pytest.mark.parametrize("words", [None, "none", "base", "thp", "thp,heap=8m", "mosaic:0-25%=thp+50-75%=thp,heap=100m"])
def test_a_program_may_rely_on_what_it_relied_on(words: str | None, tmp_path: Path) -> None:
    done = subprocess.run(
        [compiled("manners", tmp_path)],
        env=environment(words),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def test_base_has_no_huge_page_whatever_the_machine_is_set_to(heap: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    with ready([heap, "200"], environment("base", report)) as pid:
        resident, huge = programs.within(pid, *region(report))
        of_heap = [mapping for mapping in programs.mappings(pid) if mapping[4] == "[heap]"]
    assert resident >= 200 * MIB
    assert huge == 0
    assert sum(each[3] for each in of_heap) == 0


@pytest.mark.usefixtures("huge")
@pytest.mark.parametrize("threads", ["0", "4"])
def test_thp_has_the_whole_heap(heap: str, threads: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    with ready([heap, "200" if threads == "0" else "50", threads], environment("thp", report)) as pid:
        resident, huge = programs.within(pid, *region(report))
        everything, _ = programs.anonymous(pid)
    assert resident >= 200 * MIB
    assert huge >= 0.95 * resident
    assert everything - resident < 4 * MIB, "threads have no arenas of their own"


@pytest.mark.usefixtures("huge")
@pytest.mark.parametrize("words", ["thp", "thp,heap=300m", "thp,heap=100m"])
def test_a_program_that_has_malloc_give_memory_back_keeps_its_layout(words: str, tmp_path: Path) -> None:
    """malloc_trim(3) gives the end of the heap back, which would grow again without advice."""
    report = tmp_path / "report"
    with ready([compiled("trim", tmp_path), "200"], environment(words, report)) as pid:
        begin, end = region(report)
        laid = min(end - begin, 200 * MIB)
        inside = [mapping for mapping in programs.mappings(pid) if mapping[0] < end and begin < mapping[1]]
        resident = sum(each[2] for each in inside if each[0] >= begin)
        huge = sum(each[3] for each in inside)
    assert max(each[1] for each in inside) >= end, "the heap reaches to the end of the region"
    assert resident >= laid
    assert huge >= 0.95 * laid, f"{huge / laid:.1%}"


@pytest.mark.usefixtures("huge")
def test_a_mosaic_has_its_ranges(heap: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    with ready([heap, "220"], environment("mosaic:0-25%=thp+50-75%=thp,heap=200m", report)) as pid:
        begin, end = region(report)
        assert end - begin == 200 * MIB
        quarter = 50 * MIB
        for part, huge in enumerate((True, False, True, False)):
            resident, found = programs.within(pid, begin + part * quarter, begin + (part + 1) * quarter)
            assert resident == quarter
            assert abs(found - (quarter if huge else 0)) <= HUGE, part


_PYTHON = """
import sys
held = [(each, str(each)) for each in range(550_000)], [bytearray(700) for _ in range(60_000)]
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.usefixtures("huge")
@pytest.mark.parametrize(
    ("words", "least", "most"), [("base", 0, 0), ("thp", 0.9, 1), ("mosaic:0-50%=thp,heap=64m", 0.4, 0.7)]
)
def test_cpython_has_it_in_its_arenas_too(words: str, least: float, most: float, tmp_path: Path) -> None:
    before = programs.mode()
    with ready([programs.python(), "-I", "-c", _PYTHON], environment(words, tmp_path / "report")) as pid:
        laid = [mapping for mapping in programs.mappings(pid) if mapping[4] in ("", "[heap]") and mapping[2] >= 4 * MIB]
        resident, huge = sum(each[2] for each in laid), sum(each[3] for each in laid)
    assert resident >= 120 * MIB
    need(programs.mode() == before, "transparent huge pages that stay as they are during the test")
    assert least <= huge / resident <= most


@pytest.mark.whole
@pytest.mark.usefixtures("huge")
@pytest.mark.parametrize(("words", "least", "most"), [("base", 0, 0), ("thp", 0.85, 1)])
def test_redis_has_it_in_the_extents_of_jemalloc(words: str, least: float, most: float, tmp_path: Path) -> None:
    server, client = need_program("redis-server", "redis-server"), need_program("redis-cli", "redis-tools")
    socket, report = tmp_path / "s", tmp_path / "report"
    options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no", "--disable-thp", "no"]
    argv = [server, *options, "--enable-debug-command", "yes", "--dir", str(tmp_path)]
    with subprocess.Popen(argv, env=environment(words, report), stdout=subprocess.DEVNULL) as process:
        try:
            ask = [client, "-s", str(socket)]
            until(
                lambda: (
                    socket.exists() and not subprocess.run([*ask, "ping"], capture_output=True, check=False).returncode
                ),
                "the server answers",
            )
            filled = subprocess.run([*ask, "debug", "populate", "130000", "k", "1000"], capture_output=True, check=True)
            assert filled.stdout == b"OK\n"
            laid = [mapping for mapping in programs.mappings(process.pid) if mapping[4] == "" and mapping[2] >= 4 * MIB]
        finally:
            process.send_signal(signal.SIGTERM)
    resident, huge = sum(each[2] for each in laid), sum(each[3] for each in laid)
    assert resident >= 120 * MIB
    assert least <= huge / resident <= most
    assert told(report)[0]["why"] == "malloc is not glibc's"


@pytest.mark.parametrize("words", ["", "THP", "thp,heap=3m", "hugetlb-2m", "mosaic:0-25%=thp", "\x1b[31m"])
def test_what_is_no_layout_ends_the_program_before_it_begins(words: str) -> None:
    done = subprocess.run(["echo", "begun"], env=environment(words), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("libhugewise-layout.so: HUGEWISE_LAYOUT: '")
    assert "\n  cure: " in done.stderr
    assert "\x1b" not in done.stderr


def test_without_a_layout_it_does_nothing(heap: str) -> None:
    variables = environment("thp")
    del variables["HUGEWISE_LAYOUT"]
    with ready([heap, "20"], variables) as pid:
        heaps = [mapping for mapping in programs.mappings(pid) if mapping[4] == "[heap]"]
    assert sum(each[1] - each[0] for each in heaps) < 40 * MIB


def test_children_have_it_unless_the_layout_says_no(tmp_path: Path) -> None:
    report = tmp_path / "report"
    script = 'env | grep -cE "^(HUGEWISE|LD_PRELOAD)"; true'
    inherited = environment("thp", report, LD_PRELOAD_X="1")
    with_it = subprocess.run(["sh", "-c", script], env=inherited, capture_output=True, text=True, check=True)
    assert with_it.stdout == "4\n"
    assert len(told(report)) > 1
    report.unlink()
    variables = environment("thp,children=no", report)
    variables["LD_PRELOAD"] += ":libc.so.6"
    script = "env | grep -E '^(HUGEWISE|LD_PRELOAD)'; echo $LD_PRELOAD; true"
    alone = subprocess.run(["sh", "-c", script], env=variables, capture_output=True, text=True, check=True)
    assert alone.stdout == "LD_PRELOAD=libc.so.6\nlibc.so.6\n"
    assert len(told(report)) == 1


def limited(kind: int, size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (size, size))


@pytest.mark.parametrize("kind", [resource.RLIMIT_DATA, resource.RLIMIT_AS], ids=["data", "as"])
def test_under_a_limit_there_is_room_for_the_rest(kind: int, heap: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    variables = environment("base", report)
    argv = [heap, "200"]
    done = subprocess.run(
        argv, env=variables, preexec_fn=limited(kind, 512 * MIB), input=b"\n", capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"ready\n")
    assert told(report)[0]["heap_bytes"] == 128 * MIB
    report.unlink()
    variables = environment("base,heap=1g", report)
    done = subprocess.run(
        argv, env=variables, preexec_fn=limited(kind, 512 * MIB), input=b"\n", capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"ready\n")
    assert told(report)[0]["heap_bytes"] == 0
    assert "cannot be made so large" in str(told(report)[0]["why"])


def test_a_byte_that_fills_memory_does_not_fill_all_of_the_heap(heap: str, tmp_path: Path) -> None:
    for name, value in (("MALLOC_PERTURB_", "85"), ("GLIBC_TUNABLES", "glibc.malloc.perturb=85")):
        report = tmp_path / name
        with ready([heap, "20"], environment("base", report, **{name: value})) as pid:
            resident, _ = programs.anonymous(pid)
        assert resident < 40 * MIB
        assert told(report)[0]["why"] is None


def test_a_short_pool_is_said_and_base_pages_are_had(heap: str, tmp_path: Path) -> None:
    pools = sorted(Path(HUGETLB).glob("hugepages-*kB"))
    free = {pool.name: int((pool / "free_hugepages").read_text()) for pool in pools}
    more = sum(int((pool / "nr_overcommit_hugepages").read_text()) for pool in pools)
    need(
        "hugepages-2048kB" in free and free["hugepages-2048kB"] < 32 and more == 0,
        "a pool of 2 MiB pages that is short",
    )
    report = tmp_path / "report"
    with ready([heap, "80"], environment("hugetlb-2m,heap=64m", report)) as pid:
        resident, _ = programs.within(pid, *region(report))
    assert 64 * MIB <= resident < 66 * MIB
    assert told(report)[0]["short_bytes"] == 64 * MIB
    assert told(report)[0]["why"] == "the pool is short"


def test_another_allocator_s_heap_is_left_alone(tmp_path: Path) -> None:
    found = sorted(Path("/usr/lib").glob("*/libjemalloc.so.2"))
    need(bool(found), "libjemalloc2 (apt install libjemalloc2)")
    report = tmp_path / "report"
    variables = environment("thp", report)
    variables["LD_PRELOAD"] += f":{found[0]}"
    assert subprocess.run(["true"], env=variables, check=False).returncode == 0
    assert told(report)[0]["why"] == "malloc is not glibc's"


def test_a_program_with_an_allocator_of_its_own_keeps_it(tmp_path: Path) -> None:
    report = tmp_path / "report"
    made = compiled("own", tmp_path)
    done = subprocess.run([made], env=environment("thp", report), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"fine\n")
    assert told(report)[0]["why"] == "malloc is not glibc's"


def test_a_program_of_a_fixed_place_that_has_its_own_address_of_malloc_is_laid_out(tmp_path: Path) -> None:
    report = tmp_path / "report"
    made = compiled("address", tmp_path, "-no-pie", "-fno-pie", "-Wl,-z,lazy")
    done = subprocess.run([made], env=environment("thp", report), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"fine\n")
    assert told(report)[0]["why"] is None


def test_a_report_goes_to_a_file_of_one_s_own_and_nowhere_else(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("as it was\n")
    link = tmp_path / "link"
    link.symlink_to(kept)
    twice = tmp_path / "twice"
    twice.write_text("as it was\n")
    os.link(twice, tmp_path / "other-name")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (
        str(link),
        str(twice),
        str(fifo),
        str(tmp_path),
        str(tmp_path / "absent"),
        "kept",
        "/dev/null",
        "x" * 5000,
    ):
        variables = {**environment("thp"), "HUGEWISE_LAYOUT_REPORT": path}
        done = subprocess.run(["true"], env=variables, cwd=tmp_path, capture_output=True, check=False, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert kept.read_text() == twice.read_text() == "as it was\n"
    assert not (tmp_path / "absent").exists()
