"""Settings: what is turned is put back; what a plan sees of a host whose settings a run has turned."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.errors import SettingError, StorageError
from hugewise.host.journal import at_rest
from hugewise.host.knob import Settings, is_knob, put_back, read, read_knobs
from hugewise.host.ledger import Intent, JournalClosed, JournalOpened, JournalRecord, KnobTurn, Ledger, Turned
from hugewise.machine.machine import Drift
from hugewise.model.host import Host
from hugewise.model.pages import HUGETLB, THP
from tests.build import known
from tests.build.hosts import MIN_FREE, SIZED, FakeHost, Files, Killed, Notes

ENABLED, DEFRAG, M16, M64, PMD, ZERO = (
    f"{THP}/enabled",
    f"{THP}/defrag",
    f"{THP}/hugepages-16kB/enabled",
    f"{THP}/hugepages-64kB/enabled",
    f"{THP}/hugepages-2048kB/enabled",
    f"{THP}/use_zero_page",
)


def test_knobs_are_found_by_what_is_present() -> None:
    found = read_knobs(FakeHost())
    assert found[ENABLED] == "madvise"
    assert found[PMD] == "inherit"
    assert found[ZERO] == "1"
    assert found[f"{THP}/hugepages-8kB/shmem_enabled"] == "never"
    assert f"{THP}/hugepages-8kB/enabled" not in found
    assert f"{THP}/khugepaged/max_ptes_none" in found
    assert f"{THP}/khugepaged/full_scans" not in found  # it can only be read
    assert not any("/stats/" in path for path in found)
    assert found[f"{HUGETLB}/hugepages-2048kB/nr_overcommit_hugepages"] == "0"
    assert "/sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages" in found
    assert all(is_knob(path) for path in found)
    assert not any("hugepages-2048kB/enabled" in path for path in read_knobs(FakeHost(thp=False)))
    # What is no knob is never written to.
    for path in ("/etc/passwd", f"{THP}/../../x", f"{THP}/a/b/c", f"{HUGETLB}/hugepages-2048kB/demote"):
        assert not is_knob(path)


def test_apply_turns_only_what_differs_and_goes_back_to_the_start() -> None:
    host, notes = FakeHost(), Notes()
    before = read_knobs(host)
    settings = Settings(host, notes)
    assert settings.apply({ENABLED: "always", M64: "never"}) == []
    assert host.writes == [(ENABLED, "always")]
    assert settings.apply({M64: "always"}) == []  # the knob of the arm before goes back
    assert host.writes[1:] == [(ENABLED, "madvise"), (M64, "always")]
    assert settings.apply({M64: "always"}) == []
    assert len(host.writes) == 3
    assert settings.values()[M64] == "always"
    assert settings.restore() == []
    assert read_knobs(host) == before
    written = len(host.writes)
    assert settings.restore() == []
    assert len(host.writes) == written


def test_what_the_kernel_changes_beside_is_put_back_too(host: FakeHost, settings: Settings) -> None:
    settings.apply({ENABLED: "never"})
    assert host.read(MIN_FREE) == "19832"
    assert settings.drift() == []
    assert settings.restore() == []
    assert host.read(MIN_FREE) == "30000"
    host.turn(MIN_FREE, "50000")
    assert settings.restore() == []
    assert host.read(MIN_FREE) == "50000"


def test_a_foreign_change_is_named_and_left_alone(host: FakeHost, settings: Settings) -> None:
    settings.apply({ENABLED: "always"})
    host.turn(ENABLED, "never")
    host.turn(M16, "always")
    expected = [Drift(ENABLED, "always", "never"), Drift(M16, "never", "always")]
    assert sorted(settings.drift(), key=str) == sorted(expected, key=str)
    assert settings.values()[ENABLED] == "never"
    assert sorted(settings.apply({ENABLED: "always"}), key=str) == sorted(expected, key=str)
    assert host.writes == [(ENABLED, "always")]
    assert settings.restore() == [Drift(ENABLED, "always", "never")]
    assert read(host, ENABLED) == "never"
    assert str(expected[0]) == f"{ENABLED} is never, not always"


def test_an_acknowledged_change_is_what_the_run_goes_back_to(host: FakeHost, settings: Settings) -> None:
    settings.apply({ENABLED: "always"})
    host.turn(ENABLED, "never")
    settings.acknowledge(settings.drift())
    assert settings.apply({ENABLED: "always"}) == []
    assert read(host, ENABLED) == "always"
    assert settings.restore() == []
    assert read(host, ENABLED) == "never"


def test_what_the_kernel_refuses_is_an_error_that_says_what_it_offers(host: FakeHost, settings: Settings) -> None:
    with pytest.raises(SettingError, match=r"enabled = sometimes: Invalid argument") as caught:
        settings.apply({DEFRAG: "never", ENABLED: "sometimes"})
    assert caught.value.hint == "this kernel offers: always [madvise] never"
    assert settings.drift() == []
    assert settings.restore() == []
    assert read_knobs(host) == Settings(FakeHost(), None).initial


def test_a_value_that_depends_on_another_knob_is_tried_again() -> None:
    host = FakeHost()
    host.turn(f"{THP}/shmem_enabled", "force")
    settings = Settings(host, Notes())
    small = f"{THP}/hugepages-16kB/shmem_enabled"
    assert settings.apply({small: "inherit", f"{THP}/shmem_enabled": "never"}) == []
    assert read(host, small) == "inherit"
    assert settings.restore() == []
    assert read_knobs(host) == settings.initial


def test_a_value_that_the_kernel_does_not_take_is_an_error() -> None:
    settings = Settings(FakeHost(capacity={2 << 20: 10}), Notes())
    with pytest.raises(SettingError, match=r"did not take .*nr_hugepages = 20: it is 10"):
        settings.apply({"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "20"})


def test_an_unknown_knob_names_the_near_ones() -> None:
    with pytest.raises(SettingError) as caught:
        Settings(FakeHost(), Notes()).apply({f"{THP}/enable": "always"})
    assert ENABLED in known(caught.value.hint)


def test_without_a_journal_nothing_is_turned() -> None:
    host = FakeHost()
    settings = Settings(host, None)
    assert settings.apply({ENABLED: "madvise"}) == []
    with pytest.raises(SettingError, match="only root"):
        settings.apply({ENABLED: "always"})
    assert host.writes == []
    with pytest.raises(SettingError, match="only root turns knobs"):
        settings.alternation(ARMS)
    assert settings.alternation(({}, {}))(1) == []


def test_intent_comes_before_the_knob(host: FakeHost, notes: Notes, settings: Settings) -> None:
    notes.full = True
    with pytest.raises(StorageError):
        settings.apply({ENABLED: "always"})
    assert host.writes == []


def test_what_cannot_be_put_back_keeps_the_journal_open(host: FakeHost, notes: Notes, settings: Settings) -> None:
    settings.apply({ENABLED: "always"})
    host.choices[ENABLED] = (("always", "never"), "always")
    with pytest.raises(SettingError, match="enabled = madvise"):
        settings.restore()
    assert notes.kept_open


CHANGES = st.dictionaries(st.sampled_from([M16, M64, PMD]), st.sampled_from(SIZED), max_size=3) | st.dictionaries(
    st.sampled_from([ENABLED]), st.sampled_from(["always", "madvise", "never"]), max_size=1
)
STEPS = st.lists(st.tuples(st.sampled_from(["apply", "foreign", "acknowledge"]), CHANGES), max_size=12)


@given(steps=st.lists(CHANGES, max_size=8))
def test_undisturbed_restore_leaves_exactly_the_initial_state(steps: list[dict[str, str]]) -> None:
    host = FakeHost()
    before = read_knobs(host)
    settings = Settings(host, Notes())
    for wanted in steps:
        assert settings.apply(wanted) == []
        assert all(read(host, path) == wanted.get(path, before[path]) for path in before)
    assert settings.restore() == []
    assert read_knobs(host) == before


@given(steps=STEPS)
def test_nothing_foreign_is_overwritten_in_silence(steps: list[tuple[str, dict[str, str]]]) -> None:
    """`foreign` holds what others wrote last and hugewise has not yet named: it must survive everything else."""
    host = FakeHost()
    settings = Settings(host, Notes())
    home = read_knobs(host)  # what each knob must go back to: the start, or what others wrote and hugewise named
    foreign: dict[str, str] = {}
    expected = dict(home)
    for step, change in steps:
        if step == "foreign":
            for path, value in change.items():
                host.turn(path, value)
                foreign[path] = value
        elif step == "acknowledge":
            named = settings.drift()
            settings.acknowledge(named)
            for each in named:
                home[each.path] = expected[each.path] = known(each.found)
            foreign.clear()
        else:
            differing = {path for path, value in foreign.items() if expected[path] != value}
            assert {each.path for each in settings.apply(change)} == differing
            if not differing:
                expected = home | change
                foreign.clear()
        assert all(read(host, path) == value for path, value in foreign.items())
    changed = {path for path, value in foreign.items() if expected[path] != value}
    left = {each.path for each in settings.restore()}
    assert left <= changed
    for path, value in read_knobs(host).items():
        assert value == (foreign[path] if path in changed else home[path])


ARMS = ({ENABLED: "always", M64: "never"}, {ENABLED: "never", M64: "always"})


def test_arms_in_turns_have_their_knobs_which_are_journalled_once() -> None:
    host, notes = FakeHost(), Notes()
    before = read_knobs(host)
    settings = Settings(host, notes)
    turn_to = settings.alternation(ARMS)
    journalled = len(notes.records)
    for arm in (0, 1, 1, 0):
        assert turn_to(arm) == []
        assert {path: read(host, path) for path in ARMS[0]} == ARMS[arm]
        assert settings.drift() == []
    assert host.writes == [
        (ENABLED, "always"), (ENABLED, "never"), (M64, "always"), (ENABLED, "always"), (M64, "never")
    ]  # fmt: skip
    assert len(notes.records) == journalled
    assert settings.restore() == []
    assert read_knobs(host) == before


def test_a_knob_that_somebody_else_turned_between_turns_is_left_to_them() -> None:
    host = FakeHost()
    settings = Settings(host, Notes())
    turn_to = settings.alternation(ARMS)
    turn_to(0)
    host.turn(ENABLED, "madvise")
    assert turn_to(1) == [Drift(ENABLED, "always", "madvise")]
    assert read(host, M64) == "never"


@pytest.mark.parametrize("dies_at", range(1, 6))
def test_whoever_is_killed_between_turns_is_put_back_by_the_journal(dies_at: int) -> None:
    host, notes = FakeHost(), Notes()
    before = read_knobs(host)
    settings = Settings(host, notes)
    host.dies_at = dies_at
    with pytest.raises(Killed):
        turn_to = settings.alternation(ARMS)
        for arm in (0, 1, 0, 1):
            turn_to(arm)
    host.dies_at = None
    ledger = Ledger()
    for record in notes.records:
        ledger.add(record)
    put_back(host, ledger.turned, ledger.beside)
    assert read_knobs(host) == before


def test_what_somebody_else_turned_after_the_last_turn_is_left_to_them() -> None:
    """Also where it is the value that another arm had."""
    host = FakeHost()
    settings = Settings(host, Notes())
    turn_to = settings.alternation(ARMS)
    turn_to(0)
    turn_to(1)
    host.turn(ENABLED, "always")
    assert settings.restore() == [Drift(ENABLED, "never", "always")]
    assert (read(host, ENABLED), read(host, M64)) == ("always", "never")


THP_ENABLED, SCAN = f"{THP}/enabled", f"{THP}/khugepaged/pages_to_scan"
BOOT = "/proc/sys/kernel/random/boot_id"


def turned(path: Path, *more: JournalRecord, boot: str = "b") -> Path:
    """A run's journal, which has turned two knobs."""
    turns = (KnobTurn(THP_ENABLED, "madvise", "never"), KnobTurn(SCAN, "4096", "0"))
    records = (JournalOpened(boot, 1, 1, "r"), Intent(turns), Turned(), *more)
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    return path


def host(enabled: str = "always madvise [never]", scan: str = "0") -> Host:
    return Files({THP_ENABLED: enabled, SCAN: scan, BOOT: "b"})


def test_a_temporary_never_of_another_run_is_not_the_hosts(tmp_path: Path) -> None:
    found = at_rest(host(), turned(tmp_path / "journal"))
    assert (found.read(THP_ENABLED), found.read(SCAN)) == ("always [madvise] never", "4096")
    with pytest.raises(PermissionError):
        found.write(THP_ENABLED, "always")
    since = at_rest(host("[always] madvise never", "7"), turned(tmp_path / "journal"))  # somebody else has turned them
    assert (since.read(THP_ENABLED), since.read(SCAN)) == ("[always] madvise never", "7")


def test_without_a_run_under_way_the_host_is_what_it_is(tmp_path: Path) -> None:
    here = host()
    assert at_rest(here, tmp_path / "absent") is here
    assert at_rest(here, turned(tmp_path / "closed", JournalClosed("put back"))) is here
    assert at_rest(here, turned(tmp_path / "earlier", boot="another")) is here
    broken = turned(tmp_path / "broken")
    broken.write_bytes(b"{}\n")
    assert at_rest(here, broken) is here
