"""A coordinator with hosts that obey for real and play a recorded run: killed anywhere, with hosts that come and go."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bench import placement
from hugewise.analysis.analysis import analyze
from hugewise.errors import HostLostError, HugewiseError, LockedError, StorageError
from hugewise.fleet import folder, protocol
from hugewise.fleet.folder import DiskSpace, FleetFolder
from hugewise.fleet.inventory import parse
from hugewise.fleet.protocol import BeginOrder, ForgetOrder, HostAnswer, HostOrder, ReadOrder
from hugewise.fleet.records import FleetState, HostGone, HostReturned, RunGivenUp, RunShipped
from tests.fleet.hosts import RECORDED, Fleet, Killed, PlayedHost


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


# What was found to be a run that has ended, by its files: the same files say the same, wherever they lie.
ANALYSED: set[frozenset[tuple[str, str]]] = set()


def brought(fleet: Fleet, state: FleetState) -> list[str]:
    """The hosts whose runs count: whole, as they were recorded, and each once."""
    items = []
    for work in state.counted():
        assert work.shipped is not None
        folder = fleet.folder.path / work.shipped.folder
        content = files(folder)
        assert content == files(fleet.host(work.assigned.host).recorded)
        said = frozenset(content.items())
        if said not in ANALYSED:
            assert analyze(folder).state == "finished"
            ANALYSED.add(said)
        items.append(work.assigned.host)
    shipped = Counter(record.number for record in fleet.folder.records() if isinstance(record, RunShipped))
    assert set(shipped.values()) <= {1}
    assert len(items) == len(set(items))
    return sorted(items)


def test_each_host_runs_once_and_keeps_nothing(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a", "b", "c"])
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["a", "b", "c"]
    assert [host.starts for host in fleet.hosts] == [1, 1, 1]
    assert fleet.left() == []
    assert state.closed is not None and state.closed.reason == "3 of 3 hosts have measured"
    again = fleet.coordinator().conduct()  # there is nothing left to do
    assert [host.starts for host in fleet.hosts] == [1, 1, 1]
    assert brought(fleet, again) == ["a", "b", "c"]
    output = "\n".join(folder.status_lines(fleet.folder.path))
    assert "over; 3 of 3 hosts have measured" in output
    assert "a: study brought: hosts/a/" in output


def steps(tmp_path: Path) -> list[str]:
    """What an untouched coordinator does, in its order."""
    (tmp_path / "untouched").mkdir()
    items: list[str] = []
    fleet = Fleet(tmp_path / "untouched", ["a", "b"])
    fleet.coordinator(items.append).conduct()
    return items


def test_killed_before_any_step_nothing_is_lost_or_twice(tmp_path: Path) -> None:
    """Before each record, each order, and each step of bringing a run; a second coordinator goes on from the log."""
    made = steps(tmp_path)
    assert {"Assigned", "RunSettled", "RunShipped", "RunForgotten", "FleetClosed"} <= set(made)
    assert {"call begin", "call look", "call ship", "call forget", "ship begun", "ship part", "ship renamed"} <= set(
        made
    )
    for at in range(len(made)):
        below = tmp_path / str(at)
        below.mkdir()
        fleet = Fleet(below, ["a", "b"])
        left = at

        def kill(step: str) -> None:
            nonlocal left
            if left == 0:
                left = -1
                raise Killed(step)
            left -= 1

        with pytest.raises(Killed):
            fleet.coordinator(kill).conduct()
        state = fleet.coordinator().conduct()
        assert brought(fleet, state) == ["a", "b"], f"killed before step {at}, {made[at]}"
        assert [host.starts for host in fleet.hosts] == [1, 1]
        assert fleet.left() == []
        assert not [*fleet.folder.path.rglob(".*.part")]


def answering(host: PlayedHost, change: Callable[[HostOrder, HostAnswer], HostAnswer]) -> None:
    """Have what the host answers changed on its way."""
    answer = host.answer
    host.answer = lambda order: change(order, answer(order))  # type: ignore[method-assign]


def killing(host: PlayedHost, kind: type) -> None:
    """Have the coordinator killed once, after the host has obeyed an order of that kind."""
    left = [kind]

    def killed(order: HostOrder, reply: HostAnswer) -> HostAnswer:
        if left and isinstance(order, left[0]):
            raise Killed(left.pop().__name__)
        return reply

    answering(host, killed)


def test_killed_after_an_order_was_obeyed_it_is_not_done_twice(tmp_path: Path) -> None:
    """The answer never came: whether it was done is not known to who comes next."""
    for kind in (BeginOrder, ReadOrder, ForgetOrder):
        below = tmp_path / kind.__name__
        below.mkdir()
        fleet = Fleet(below, ["a"])
        host = fleet.host("a")
        killing(host, kind)
        with pytest.raises(Killed):
            fleet.coordinator().conduct()
        state = fleet.coordinator().conduct()
        assert (brought(fleet, state), host.starts, fleet.left()) == (["a"], 1, [])


def test_a_line_that_was_torn_is_cut_off(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a"])
    with (fleet.folder.path / "log.jsonl").open("ab") as log:
        log.write(b'{"record":"assigned","t":1.0,"number":1,"ho')
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["a"]
    assert [work.number for work in state.assignments.values()] == [1]


def test_a_host_that_is_gone_for_a_while_is_waited_for(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a", "b"], table='wait = "30s"')
    looks = 0

    def cut(host: str, order: HostOrder) -> None:
        nonlocal looks
        if host == "a" and isinstance(order, protocol.LookOrder):
            looks += 1
            if looks in (1, 2):
                raise HostLostError("a: No route to host")

    fleet.engine.before = cut
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["a", "b"]
    kinds = [type(record) for record in fleet.folder.records()]
    assert kinds.count(HostGone) == 1 and kinds.count(HostReturned) == 1
    assert "a is out of reach: a: No route to host" in fleet.lines
    assert fleet.lines.count("a is back") == 1


def test_the_fleet_ends_without_a_lost_host_and_takes_it_when_it_returns(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a", "b"], table='wait = "1s"')
    fleet.host("a").lost = fleet.host("a").swallows = True  # it obeys, and no answer comes back
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["b"]
    assert state.closed is not None and state.closed.reason == "1 of 2 hosts have measured"
    given_up = state.assignments[1].given_up
    assert given_up is not None and "out of reach" in given_up.reason
    fleet.host("a").lost = False
    again = fleet.coordinator().conduct()
    assert brought(fleet, again) == ["a", "b"]
    assert fleet.host("a").starts == 1


def test_a_run_that_failed_has_its_part(tmp_path: Path) -> None:
    """It may have failed of the treatment."""
    fleet = Fleet(tmp_path, ["a", "b"])
    fleet.host("a").fails = "exit status 1: out of memory"
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["a", "b"]
    assert "out of memory" in (state.hosts["a"].quarantined or "")
    assert state.closed is not None
    assert state.closed.reason == "1 of 2 hosts have measured; before its end: a failed"
    output = "\n".join(folder.status_lines(fleet.folder.path))
    assert "a: quarantined (the study has failed there: exit status 1: out of memory)" in output


def test_a_host_on_which_nothing_could_begin_has_no_part(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a", "b"])
    fleet.host("a").fails, fleet.host("a").begins = "exit status 2: nothing of it can run here", False
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["b"]
    assert fleet.left() == []


def test_a_run_of_another_machine_does_not_count(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a", "b"])
    fleet.host("a").recorded = fleet.host("b").recorded
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["b"]
    assert "on another machine than the one that was greeted" in (state.hosts["a"].quarantined or "")
    shipped = state.assignments[1].shipped
    assert shipped is not None and shipped.foreign is not None and not state.assignments[1].counted


def test_a_copy_of_another_hosts_run_does_not_count(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a", "b"])
    first, text = fleet.host("a").recorded, (fleet.host("b").recorded / "run.jsonl").read_bytes()
    coins = [hashlib.sha256(name.encode()).hexdigest().encode() for name in ("a", "b")]
    (fleet.host("b").recorded / "run.jsonl").write_bytes(text.replace(coins[1], coins[0]))
    state = fleet.coordinator().conduct()
    assert len(state.counted()) == 1
    assert any("it is a copy of a run of" in line for line in fleet.lines)
    assert first.is_dir()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (b'"release":"6.18', b'"release":"6.19', "kernel: "),
        (b'"microcode":"0x', b'"microcode":"0y', "microcode: "),
        (b'"hugewise":"0.1.0"', b'"hugewise":"0.0.1"', "by hugewise 0.0.1"),
        (b'transparent_hugepage/enabled":"madvise"', b'transparent_hugepage/enabled":"always"', "pages: "),
    ],
    ids=["kernel", "microcode", "hugewise", "pages"],
)
def test_a_host_that_is_another_one_by_then_does_not_count(
    tmp_path: Path, before: bytes, after: bytes, told: str
) -> None:
    fleet = Fleet(tmp_path, ["a"])
    path = fleet.host("a").recorded / "run.jsonl"
    text = path.read_bytes()
    assert before in text
    path.write_bytes(text.replace(before, after, 1))
    state = fleet.coordinator().conduct()
    assert state.counted() == []
    assert told in (state.hosts["a"].quarantined or "")


def raising(error: type[BaseException]) -> Callable[[str], None]:
    """Steps at which a coordinator ends by that, before it looks at a host."""

    def step(name: str) -> None:
        if name == "call look":
            raise error(name)

    return step


def test_ending_ends_what_runs_and_brings_it(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a"])
    fleet.host("a").looks = 10**6
    with pytest.raises(KeyboardInterrupt):
        fleet.coordinator(raising(KeyboardInterrupt)).conduct()
    state = fleet.coordinator(ending=True).conduct()
    work = state.assignments[1]
    assert work.settled is not None and (work.settled.state, work.settled.reason) == ("interrupted", protocol.ENDED)
    assert work.shipped is not None and fleet.left() == []
    assert state.hosts["a"].quarantined is None


def test_bytes_that_were_changed_on_the_way_are_not_taken(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a"])
    changed = 0

    def flipped(_: HostOrder, reply: HostAnswer) -> HostAnswer:
        nonlocal changed
        if isinstance(reply, protocol.RunBytes) and not changed:
            changed = 1
            return protocol.RunBytes(data=bytes([reply.data[0] ^ 1]) + reply.data[1:])
        return reply

    answering(fleet.host("a"), flipped)
    state = fleet.coordinator().conduct()
    assert changed and brought(fleet, state) == ["a"]
    assert any("has not the hash that its manifest says" in line for line in fleet.lines)


def test_a_run_of_another_study_is_never_taken(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a"], table='wait = "1s"')
    fleet.host("a").recorded = RECORDED.parent / "deployed"
    state = fleet.coordinator().conduct()
    assert state.counted() == []
    assert any("not a run of the study that was asked" in line for line in fleet.lines)
    assert fleet.left() == ["1"]
    assert [path for path in (fleet.folder.path / "hosts/a").iterdir() if not path.name.startswith(".")] == []


def test_a_spool_that_was_emptied_is_not_waited_for(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a", "b"])
    emptied = False

    def empty(name: str, order: HostOrder) -> None:
        nonlocal emptied
        if name == "a" and isinstance(order, protocol.LookOrder) and not emptied:
            emptied = True
            (fleet.host("a").spool / fleet.folder.fleet).rename(tmp_path / "gone")

    fleet.engine.before = empty
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["b"]
    assert "its spool was emptied" in (state.hosts["a"].quarantined or "")


def test_one_coordinator_at_a_time(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a"])
    other = FleetFolder(fleet.folder.path)
    assert (fleet.folder.path / "lock").stat().st_mode & 0o777 == 0o600, "who can read it can hold it"
    fleet.folder.hold()
    with pytest.raises(LockedError):
        other.hold()
    fleet.folder.close()
    other.hold()
    other.close()


def test_no_room_for_one_run_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(tmp_path, ["a", "b"], table='wait = "1s"')
    with monkeypatch.context() as full:
        full.setattr("hugewise.fleet.folder._ROOM", 1 << 62)
        assert brought(fleet, fleet.coordinator().conduct()) == []
    assert len(fleet.left()) == 2  # what is there stays there
    assert any("there is no room for it" in line for line in fleet.lines)
    assert brought(fleet, fleet.coordinator().conduct()) == ["a", "b"]


def test_a_full_disk_here_ends_the_coordinator_and_nothing_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, ["a"])

    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("hugewise.fleet.folder._sync_filesystem", full)
        with pytest.raises(StorageError, match="No space left on device"):
            fleet.coordinator().conduct()
    assert fleet.left() == ["1"]
    assert brought(fleet, fleet.coordinator().conduct()) == ["a"]


def entry(name: str, data: bytes = b"") -> protocol.FileEntry:
    return protocol.FileEntry(name, len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    "files",
    [
        (entry("a"), entry("a-b"), entry("a/b")),
        (entry("a"), entry("a")),
        (protocol.FileEntry("a", 1 << 42, "0" * 64),),
        (protocol.FileEntry("a", (1 << 62) - 1, "0" * 64),),
    ],
    ids=["a file as a folder", "twice", "large", "larger"],
)
def test_what_one_host_says_ends_no_other(tmp_path: Path, files: tuple[protocol.FileEntry, ...]) -> None:
    fleet = Fleet(tmp_path, ["a", "b"], table='wait = "1s"')

    def lies(_: HostOrder, reply: HostAnswer) -> HostAnswer:
        return msgspec.structs.replace(reply, files=files) if isinstance(reply, protocol.ManifestFound) else reply

    answering(fleet.host("a"), lies)
    assert brought(fleet, fleet.coordinator().conduct()) == ["b"]


def test_another_manifest_finds_nothing_of_the_one_before(tmp_path: Path) -> None:
    """`a/b`, refused for its hash; then `a` as a file."""
    fleet = Fleet(tmp_path, ["a", "b"], table='wait = "1s"')
    asked = 0

    def lies(order: HostOrder, reply: HostAnswer) -> HostAnswer:
        nonlocal asked
        if isinstance(reply, protocol.ManifestFound):
            asked += 1
            files = (entry("c", b"x"), protocol.FileEntry("a/b", 1, "0" * 64)) if asked == 1 else (entry("a", b"x"),)
            return msgspec.structs.replace(reply, files=files)
        return protocol.RunBytes(data=b"x" * order.size) if isinstance(order, ReadOrder) else reply

    answering(fleet.host("a"), lies)
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["b"]
    run = next((fleet.folder.path / "hosts/a").iterdir(), None)
    assert run is None or {path.name for path in run.iterdir()} <= {"a"}


def refusing(fleet: Fleet, name: str, kind: type, times: int, refusal: protocol.Refusal) -> None:
    """Have a host refuse orders of that kind so many times, after it has obeyed none of them."""
    host, left = fleet.host(name), times
    answer = host.answer

    def answered(order: HostOrder) -> protocol.HostAnswer:
        nonlocal left
        if isinstance(order, kind) and left:
            left -= 1
            return refusal
        return answer(order)

    host.answer = answered  # type: ignore[method-assign]


FULL = protocol.Refusal(why="/var/lib/hugewise/fleet/f/worker: No space left on device")


@pytest.mark.parametrize(
    "kind",
    [
        BeginOrder,
        pytest.param(protocol.LookOrder, marks=pytest.mark.soak),
        pytest.param(protocol.ManifestOrder, marks=pytest.mark.soak),
        ReadOrder,
        ForgetOrder,
    ],
)
def test_a_host_that_refuses_for_a_while_loses_nothing(tmp_path: Path, kind: type) -> None:
    fleet = Fleet(tmp_path, ["a", "b"], table='wait = "30s"')
    refusing(fleet, "a", kind, 6, FULL)
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["a", "b"]
    while fleet.left():  # what is only to be removed there keeps no fleet waiting
        assert kind is ForgetOrder
        state = fleet.coordinator().conduct()
    assert (fleet.host("a").starts, brought(fleet, state)) == (1, ["a", "b"])
    assert any("No space left on device" in line for line in fleet.lines)


def test_a_fence_is_for_ever(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a", "b"])
    refusing(fleet, "a", BeginOrder, 1, protocol.Refusal(why="the number 7 was begun here", fenced=True))
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["b"]
    assert state.assignments[1].forgotten and fleet.left() == []


def test_commands_may_run_in_another_folder_after_a_resume(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a"])
    with pytest.raises(Killed):
        fleet.coordinator(raising(Killed)).conduct()
    text = '[fleet]\ncheck = 0\nlook = 0.05\n[[host]]\nname = "a"\nssh = "a"\ndirectory = "/tmp"\n'
    fleet.inventory = parse(text, "hosts.toml")
    state = fleet.coordinator().conduct()
    assert (brought(fleet, state), fleet.host("a").starts) == (["a"], 1)


def test_what_a_host_says_begins_no_line(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a", "b"])
    fleet.host("a").fails = "x\nb: the check passed\n\x1b]0;title\x07"
    state = fleet.coordinator().conduct()
    said = [*fleet.lines, *folder.status_lines(fleet.folder.path)]
    assert not any("\n" in line or "\x1b" in line for line in said)
    assert any("x b: the check passed" in line for line in said)
    assert brought(fleet, state) == ["a", "b"]


def test_a_coordinator_that_slept_gives_up_nobody(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a"], table='wait = "60s"')
    calls = 0

    def sleeps(host: str, order: HostOrder) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise HostLostError("a: No route to host")
        if calls == 3:
            fleet.calls.now += 3600.0  # the lid is closed, and opened
            raise HostLostError("a: No route to host")

    fleet.engine.before = sleeps
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["a"]
    assert not any(isinstance(record, RunGivenUp) for record in fleet.folder.records())


def test_an_order_has_a_minute_whatever_is_waited(tmp_path: Path) -> None:
    """A login that hangs holds up no other host for as long as a host may be out of reach."""
    fleet = Fleet(tmp_path, ["a"], table='wait = "3h"')
    given: dict[str, float] = {}
    call = fleet.engine.call

    def noted(host: str, order: HostOrder, timeout: float = 60.0) -> protocol.HostAnswer:
        given[type(order).__name__] = timeout
        return call(host, order, timeout)

    fleet.engine.call = noted  # type: ignore[method-assign]
    fleet.coordinator().conduct()
    assert {given[name] for name in ("BeginOrder", "LookOrder", "ForgetOrder")} == {60.0}
    assert given["ReadOrder"] == 120.0


def test_room_that_is_claimed_is_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    room = DiskSpace(largest=1 << 62)
    with (
        room.reserve(tmp_path, free // 2),
        pytest.raises(HugewiseError, match="no room"),
        room.reserve(tmp_path, free // 2),
    ):
        pass
    with room.reserve(tmp_path, free // 2):
        pass
    with pytest.raises(HugewiseError, match="4,096 MiB is the most"), DiskSpace().reserve(tmp_path, 5 << 30):
        pass


def test_a_fleet_is_what_its_log_says_wherever_it_lies(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a", "b"])
    with pytest.raises(Killed):
        fleet.coordinator(raising(Killed)).conduct()
    (tmp_path / "latest").symlink_to(fleet.folder.path)
    identity = fleet.folder.fleet
    fleet.folder = FleetFolder(tmp_path / "latest")
    state = fleet.coordinator().conduct()
    assert brought(fleet, state) == ["a", "b"]
    assert [host.starts for host in fleet.hosts] == [1, 1]
    assert {path.name for host in fleet.hosts for path in host.spool.iterdir()} == {identity}


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.soak)])
def test_no_run_is_lost_or_counted_twice_when_hosts_are_killed(tmp_path: Path, seed: int) -> None:
    played = placement.played(tmp_path, seed, hosts=20, killed=6)
    assert (played.lost, played.doubled) == (0, 0)


@pytest.mark.soak  # it waits for as long as a host may be away
def test_what_is_lost_is_seen(tmp_path: Path) -> None:
    played = placement.played(tmp_path, 4, hosts=8, killed=4, gone=2, wait=20.0)
    assert (played.lost, played.doubled) == (2, 0)


def test_the_figures_are_shown() -> None:
    one = {"lost": 0, "doubled": 0, "decided": 0.2, "usual": 0.001, "gap": 0.3, "usual_gap": 0.05}
    told = placement.show([one | {"seconds": 2.0, "peak": 50 << 20}])
    assert "a decision: 1.0 ms, at most 200.0 ms, target at most 1 s" in told
    assert "runs lost: 0, counted twice: 0 -> met" in told
    assert "MISSED" in placement.show([one | {"seconds": 2.0, "peak": 50 << 20, "lost": 1}])
