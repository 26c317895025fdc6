import errno
import mmap
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.errors import SettingError
from hugewise.host.journal import Journal, recover
from hugewise.host.knob import NODES, Settings, read, read_knobs
from hugewise.host.ledger import PoolGranted, PoolIntent
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.host.pool import Pools, Where, available, hold, in_use, pool_folder
from hugewise.model.pages import HUGETLB, PageSizes
from tests.build.hosts import FakeHost, Killed, Notes
from tests.requirements import need, need_root
from tests.state import changed, page_state

SMALL, LARGE = 2 << 20, 1 << 30
PATH = f"{HUGETLB}/hugepages-2048kB/nr_hugepages"


def test_pools_are_filled_restored_and_no_drift(host: FakeHost, settings: Settings, pools: Pools) -> None:
    before = read_knobs(host)
    assert pools.fill({SMALL: 100, LARGE: 2}) == {LARGE: 2, SMALL: 100}
    assert host.writes[0][0].startswith(pool_folder(LARGE))
    assert settings.drift() == []
    assert pools.verify() == []
    assert settings.apply({}) == []
    assert pools.restore() == []
    assert read_knobs(host) == before
    assert settings.drift() == []
    written = len(host.writes)
    assert pools.restore() == []
    assert len(host.writes) == written


def test_a_request_is_granted_in_part_and_restored_by_what_was_granted() -> None:
    host = FakeHost(capacity={LARGE: 3})
    settings = Settings(host, Notes())
    pools = Pools(settings)
    assert pools.fill({LARGE: 5}) == {LARGE: 3}
    assert sum(path == "/proc/sys/vm/compact_memory" for path, _ in host.writes) == 2
    assert settings.drift() == []
    assert pools.restore() == []
    assert available(host, LARGE) == 0


def test_compaction_makes_room() -> None:
    host = FakeHost(capacity={LARGE: 1})
    host.on_compact = lambda: host.capacity.update({LARGE: 4})
    assert Pools(Settings(host, Notes())).fill({LARGE: 4}) == {LARGE: 4}


def test_a_kernel_that_gives_none_at_run_time_grants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost()
    real = host.turn

    def refuse(path: str, text: str) -> None:
        real("/nonexistent" if path.endswith("nr_hugepages") else path, text)

    monkeypatch.setattr(host, "turn", refuse)
    pools = Pools(Settings(host, Notes()))
    assert pools.fill({LARGE: 1}) == {LARGE: 0}
    assert pools.restore() == []


def test_pages_of_others_stay_theirs() -> None:
    host = FakeHost()
    host.turn(PATH, "50")
    host.use(2048, 20)
    settings = Settings(host, Notes())
    pools = Pools(settings)
    assert pools.fill({SMALL: 100}) == {SMALL: 100}
    assert pools.others == {SMALL: 20}
    assert host.read(PATH) == "150"
    assert pools.restore() == []
    assert host.read(PATH) == "50"
    assert in_use(host, SMALL) == 20


def test_free_pages_of_others_count_where_no_more_can_be_had() -> None:
    host = FakeHost(capacity={LARGE: 2})
    host.turn(f"{HUGETLB}/hugepages-1048576kB/nr_hugepages", "2")
    pools = Pools(Settings(host, Notes()))
    assert pools.fill({LARGE: 2}) == {LARGE: 2}
    assert pools.restore() == []
    assert available(host, LARGE) == 2


class Leaving(FakeHost):
    """A program lets go of one page after another of those it uses, before every `pace`th look at a pool."""

    def __init__(self, pace: int) -> None:
        super().__init__()
        self.left, self.looks, self.pace = 0, 0, pace

    def read(self, path: str) -> str:
        if self.left and path.endswith(("/nr_hugepages", "/surplus_hugepages")):
            self.looks += 1
            if self.looks % self.pace == 0:
                self.left -= 1
                self.use(2048, -1)
        return super().read(path)


def test_pages_of_a_process_that_is_about_to_be_gone_are_waited_for() -> None:
    host = Leaving(pace=7)
    pools = Pools(Settings(host, Notes()))
    pools.fill({SMALL: 10})
    host.use(2048, 4)
    host.left = 4
    assert pools.restore() == []
    assert host.left == 0
    assert host.read(PATH) == "0"


def test_pages_that_stay_in_use_become_surplus_and_are_named(
    host: FakeHost, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hugewise.host.pool._PATIENCE_S", 0.0)
    pools.fill({SMALL: 10})
    host.use(2048, 4)
    assert [each.path for each in pools.verify()] == [f"{HUGETLB}/hugepages-2048kB/free_hugepages"]
    (held,) = pools.restore()
    assert (held.expected, held.found) == ("0", "4")
    assert held.left_alone().startswith("not restored, as a program still uses pages of the pool (they go with it): ")
    assert held.left_alone().endswith("node0/hugepages/hugepages-2048kB/surplus_hugepages is 4, not 0")
    assert host.read(PATH) == "4"
    assert read(host, PATH) == "0"
    host.use(2048, -4)
    assert host.read(PATH) == "0"
    assert pools.restore() == []


def test_surplus_pages_that_were_there_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hugewise.host.pool._PATIENCE_S", 0.0)
    host = FakeHost()
    host.turn(PATH, "6")
    host.use(2048, 6)
    host.turn(PATH, "4")
    pools = Pools(Settings(host, Notes()))
    pools.fill({SMALL: 10})
    assert pools.restore() == []
    assert host.read(PATH) == "6"
    assert read(host, PATH) == "4"


@pytest.mark.parametrize("pace", range(1, 6))
def test_a_pool_is_read_whole_while_surplus_pages_go(pace: int) -> None:
    host = Leaving(pace)
    host.turn(PATH, "30")
    host.use(2048, 30)
    host.turn(PATH, "5")
    host.left = 25
    assert {read(host, PATH) for _ in range(60)} == {"5"}
    assert host.left == 0


def test_a_pool_taken_away_is_drift_and_stays_taken(host: FakeHost, settings: Settings, pools: Pools) -> None:
    pools.fill({SMALL: 100})
    host.turn(PATH, "40")
    assert PATH in {each.path for each in settings.drift()}
    assert [each.found for each in pools.verify()] == ["40", "40"]
    assert [(each.expected, each.found) for each in pools.restore()] == [("100", "40")]
    assert host.read(PATH) == "40"


def test_what_others_add_is_kept_whether_named_or_not() -> None:
    for name_it in (True, False):
        host = FakeHost()
        settings = Settings(host, Notes())
        pools = Pools(settings)
        pools.fill({SMALL: 100})
        host.turn(PATH, "350")
        if name_it:
            settings.acknowledge(settings.drift())
            assert settings.drift() == []
        assert pools.restore() == []
        assert host.read(PATH) == "250"
        assert pools.restore() == []
        assert host.read(PATH) == "250"


def test_a_pool_that_others_made_smaller_is_theirs_once_it_is_named(
    host: FakeHost, settings: Settings, pools: Pools
) -> None:
    pools.fill({SMALL: 100})
    host.turn(PATH, "40")
    settings.acknowledge(settings.drift())
    assert settings.drift() == []
    assert pools.restore() == []
    assert host.read(PATH) == "40"


def test_an_ordinary_user_gets_what_is_free_and_not_reserved() -> None:
    host = FakeHost()
    host.turn(PATH, "50")
    host.use(2048, 20)
    host.root = False
    pools = Pools(Settings(host, None))
    assert pools.fill({SMALL: 100, LARGE: 1}) == {LARGE: 0, SMALL: 30}
    assert pools.restore() == []
    host.use(2048, -20)
    host.numbers[f"{HUGETLB}/hugepages-2048kB/resv_hugepages"] = 45
    assert (available(host, SMALL), in_use(host, SMALL)) == (5, 45)


@pytest.mark.parametrize("nodes", [True, False])
def test_works_without_nodes_surplus_and_overcommit(nodes: bool) -> None:
    host = FakeHost(nodes=nodes)
    for path in [
        number for number in host.numbers if "surplus" in number or "overcommit" in number or "resv" in number
    ]:
        del host.numbers[path]
    before = read_knobs(host)
    settings = Settings(host, Notes())
    pools = Pools(settings)
    assert pools.fill({SMALL: 7}) == {SMALL: 7}
    assert settings.drift() == []
    assert pools.restore() == []
    assert read_knobs(host) == before


class TwoNodes(FakeHost):
    """A machine with two NUMA nodes, which have at most `room` pages of 1 GiB each; pages for any go to the emptier."""

    def __init__(self, *room: int) -> None:
        super().__init__(capacity={LARGE: sum(room)})
        self.room = room
        for file in ("nr_hugepages", "free_hugepages", "surplus_hugepages"):
            self.numbers[f"{pool_folder(LARGE, 1)}/{file}"] = 0

    def on(self, node: int) -> int:
        return self.numbers[f"{pool_folder(LARGE, node)}/nr_hugepages"]

    def turn(self, path: str, text: str) -> None:
        pages = [self.on(0), self.on(1)]
        match [path == f"{pool_folder(LARGE, node)}/nr_hugepages" for node in (None, 0, 1)]:
            case [True, _, _]:
                assert int(text) >= sum(pages), "a run gives pages back by node"
                while sum(pages) < min(int(text), sum(self.room)):
                    pages[min((0, 1), key=lambda node: (pages[node] >= self.room[node], pages[node]))] += 1
            case [_, *own] if any(own):
                pages[own.index(True)] = min(int(text), self.room[own.index(True)])
            case _:
                super().turn(path, text)
        for node, held in ((0, pages[0]), (1, pages[1]), (None, sum(pages))):
            for file in ("nr_hugepages", "free_hugepages"):
                self.numbers[f"{pool_folder(LARGE, node)}/{file}"] = held


def test_what_is_bound_to_a_node_comes_from_it_and_the_rest_from_anywhere() -> None:
    host = TwoNodes(8, 8)
    notes = Notes()
    settings = Settings(host, notes)
    before = read_knobs(host)
    pools = Pools(settings)
    wanted = {(LARGE, None): 3, (LARGE, 1): 4, (LARGE, 0): 1}
    assert pools.fill_nodes(wanted) == wanted
    assert [path for path, _ in host.writes] == [f"{pool_folder(LARGE, node)}/nr_hugepages" for node in (0, 1, None)]
    assert (host.on(0), host.on(1)) == (4, 4)
    # One intent, and one record of what came, for all parts: so a pool is filled once.
    assert [type(record) for record in notes.records] == [PoolIntent, PoolGranted]
    assert isinstance(notes.records[0], PoolIntent)
    assert notes.records[0].wanted == 8
    assert settings.drift() == []
    assert pools.verify() == []
    host.numbers[f"{pool_folder(LARGE, 1)}/free_hugepages"] = 2  # somebody maps pages of that node
    assert [(each.path, each.found) for each in pools.verify()] == [(f"{pool_folder(LARGE, 1)}/free_hugepages", "2")]
    host.numbers[f"{pool_folder(LARGE, 1)}/free_hugepages"] = 4
    assert pools.restore() == []
    assert read_knobs(host) == before
    assert settings.drift() == []


@pytest.mark.parametrize(
    ("room", "granted"),
    [
        ((8, 2), {(LARGE, 1): 2, (LARGE, None): 3}),  # what another node has is of no use to a guest that is bound
        ((0, 5), {(LARGE, 1): 4, (LARGE, None): 1}),  # anywhere: what is left
        ((1, 0), {(LARGE, 1): 0, (LARGE, None): 1}),
    ],
)
def test_what_a_node_lacks_is_said_of_that_node(room: tuple[int, int], granted: dict[Where, int]) -> None:
    host = TwoNodes(*room)
    pools = Pools(Settings(host, Notes()))
    assert pools.fill_nodes({(LARGE, 1): 4, (LARGE, None): 3}) == granted
    assert pools.verify() == []
    assert pools.restore() == []
    assert (host.on(0), host.on(1)) == (0, 0)


def test_pages_that_others_reserved_are_promised_to_no_node() -> None:
    host = TwoNodes(2, 2)
    host.turn(f"{pool_folder(LARGE)}/nr_hugepages", "4")
    host.numbers[f"{pool_folder(LARGE)}/resv_hugepages"] = 3  # nodes do not say whose they are
    pools = Pools(Settings(host, Notes()))
    assert pools.fill_nodes({(LARGE, 1): 2}) == {(LARGE, 1): 1}


def test_all_that_is_free_of_one_size_is_held_back_and_nothing_where_nothing_is(
    host: FakeHost, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[tuple[int, int]] = []

    def map_(descriptor: int, length: int, flags: int) -> object:
        assert descriptor == -1
        assert flags & mmap.MAP_PRIVATE and flags & mmap.MAP_ANONYMOUS and flags & 0x40000
        mapped.append((length, 1 << (flags >> 26)))
        return mapped

    monkeypatch.setattr(mmap, "mmap", map_)
    assert hold(host, SMALL) is None
    pools.fill({SMALL: 10, LARGE: 2})
    host.use(2048, 3)  # some program has mapped them
    host.numbers[f"{pool_folder(SMALL)}/resv_hugepages"] = 2  # and is promised these
    held: list[object] = [hold(host, SMALL), hold(host, LARGE)]
    assert all(each is mapped for each in held)
    assert mapped == [(5 * SMALL, SMALL), (2 * LARGE, LARGE)]


def test_pages_that_cannot_be_held_back_are_named_with_who_may_have_them(
    host: FakeHost, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> object:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    pools.fill({SMALL: 7})
    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(SettingError) as why:
        hold(host, SMALL)
    told = "7 free pages of 2048 kB, reserved for other arms, cannot be held back: Cannot allocate memory"
    assert why.value.message == told
    assert "a hugetlb cgroup has a limit" in str(why.value.hint)


@pytest.mark.parametrize("at", range(4))
def test_whatever_node_a_run_dies_at_the_next_root_call_puts_all_back(tmp_path: Path, at: int) -> None:
    host = TwoNodes(8, 8)
    host.turn(f"{pool_folder(LARGE, 1)}/nr_hugepages", "2")  # of somebody else
    before = read_knobs(host)
    path = tmp_path / "journal.jsonl"
    journal = Journal.begin(host, path, "test")
    host.dies_at = at
    try:
        Pools(Settings(host, journal)).fill_nodes({(LARGE, 0): 2, (LARGE, 1): 2, (LARGE, None): 2})
        assert at == 3
    except Killed:
        assert at < 3
    finally:
        host.dies_at = None
        journal.abandon()
    assert recover(host, path).left == ()
    assert read_knobs(host) == before


def test_errors_say_what_is_wrong(host: FakeHost, settings: Settings, pools: Pools) -> None:
    with pytest.raises(SettingError, match="this machine has no pool of 64 kB pages"):
        pools.fill({64 << 10: 1})
    with pytest.raises(SettingError, match="NUMA node 1 of this machine has no pool of 2048 kB pages"):
        pools.fill_nodes({(SMALL, 1): 1})
    host.turn(PATH, "3")
    with pytest.raises(SettingError, match="somebody else changed a pool"):
        pools.fill({SMALL: 1})
    settings.acknowledge(settings.drift())
    pools.fill({SMALL: 1})
    with pytest.raises(SettingError, match="filled already"):
        pools.fill({SMALL: 1})


@given(
    before=st.integers(0, 30),
    wanted=st.integers(1, 30),
    capacity=st.integers(0, 60),
    foreign=st.integers(0, 60) | st.none(),
)
def test_restore_takes_only_what_was_added(before: int, wanted: int, capacity: int, foreign: int | None) -> None:
    host = FakeHost(capacity={SMALL: max(before, capacity)})
    host.turn(PATH, str(before))
    pools = Pools(Settings(host, Notes()))
    pools.fill({SMALL: wanted})
    filled = int(host.read(PATH))
    if foreign is not None:
        host.turn(PATH, str(foreign))
    now = int(host.read(PATH))
    left = pools.restore()
    if now >= filled:
        assert int(host.read(PATH)) == before + now - filled
        assert left == []
    else:
        assert int(host.read(PATH)) == now
        assert bool(left) == (now != before)


@pytest.fixture
def real() -> Iterator[LocalHost]:
    need_root()
    host = LocalHost()
    with HostLock(host):
        before = read_knobs(host)
        yield host
        assert read_knobs(host) == before


@pytest.fixture
def size(real: LocalHost) -> int:
    """A size of which this kernel has a pool, in bytes."""
    sizes = PageSizes.discover(real)
    need(bool(sizes.hugetlb), "a kernel with hugetlb pools")
    return sizes.hugetlb[0]


@pytest.mark.whole
def test_pages_of_a_real_node_are_filled_and_given_back(real: LocalHost, size: int, tmp_path: Path) -> None:
    need("node0" in real.names(NODES), "a kernel that knows NUMA nodes")
    journal = Journal.begin(real, tmp_path / "journal.jsonl", "test")
    settings = Settings(real, journal)
    pools = Pools(settings)
    before = in_use(real, size, 0), available(real, size, 0)
    try:
        granted = pools.fill_nodes({(size, 0): 6, (size, None): 2})
        added = available(real, size, 0) - before[1]
        assert settings.drift() == []
        assert pools.verify() == []
    finally:
        left = pools.restore()
        journal.close()
    assert granted == {(size, 0): 6, (size, None): 2}
    assert 6 <= added <= 8
    assert (in_use(real, size, 0), available(real, size, 0)) == before
    assert left == []


# Uses 4 pages of the pool, and goes 0.3 s after it was told to.
_USER = """
import mmap, sys, time
size = int(sys.argv[1])
MAP_HUGETLB = 0x40000
memory = mmap.mmap(-1, 4 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
for page in range(4):
    memory[page * size] = 1
print("used", flush=True)
sys.stdin.readline()
time.sleep(0.3)
"""


@pytest.mark.whole
@pytest.mark.parametrize("by", ["the run", "the next root call"])
def test_a_real_pool_is_as_it_was_though_its_last_user_goes_late(
    real: LocalHost, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr("hugewise.host.journal.start_time", lambda *_: None)  # the owner of the journal is dead
    monkeypatch.setattr("hugewise.host.pool._PATIENCE_S", 60.0)  # its user may be slow to go
    before = page_state()
    path = tmp_path / "journal.jsonl"
    journal = Journal.begin(real, path, "test")
    pools = Pools(Settings(real, journal))
    try:
        granted = pools.fill({size: 8})
        command = [sys.executable, "-c", _USER, str(size)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
            assert user.stdin is not None
            assert user.stdout is not None
            assert user.stdout.readline() == "used\n"
            used = in_use(real, size) - pools.others[size]
            user.stdin.write("go\n")
            user.stdin.flush()
            left = pools.restore() if by == "the run" else list(recover(real, path).left)
            differing = changed(before)
    finally:
        pools.restore()
        journal.close()
    assert (granted, used) == ({size: 8}, 4)
    assert left == []
    assert differing == {}
