"""What a host says, an inventory, and the log of a fleet, broken: a value, or the one error."""

from pathlib import Path

from hypothesis import given

from hugewise.errors import RunError, StudyError
from hugewise.fleet import inventory, pooled, protocol
from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.protocol import (
    Assignment,
    AssignmentSeen,
    BeginOrder,
    FileEntry,
    FleetQuestion,
    HelloOrder,
    ManifestFound,
    ReadOrder,
    Refusal,
    RunBytes,
)
from hugewise.fleet.records import FleetState
from hugewise.reading import UnreadableError
from tests.build.fleets import FAST, FleetHostMade, a_fleet
from tests.fleet.hosts import Fleet
from tests.fuzz.inputs import broken, fuzzed, in_time

ONE = Assignment("20261123T031355Z-f690", 3)
QUESTION = FleetQuestion(text="format = 1", scale="published", directory="/srv")
ORDERS = [
    protocol.encode(each)
    for each in (
        HelloOrder(question=QUESTION),
        BeginOrder(assignment=ONE, question=QUESTION),
        ReadOrder(assignment=ONE, offset=1 << 22, size=4096),
    )
]
ANSWERS = [
    protocol.encode(each)
    for each in (
        AssignmentSeen(assignment=ONE, state="running", run="20261122T125547Z-548a", closed=3),
        ManifestFound(assignment=ONE, run="r", files=(FileEntry("attempts/b00001-1-base-1/stdout", 3, "0" * 64),)),
        RunBytes(data=b"abc"),
        Refusal(why="no room", hint="make some"),
    )
]
HOSTS = b"""
[fleet]
engine = "ssh"
wait = "5m"

[[host]]
name = "rack1-a"
ssh = "admin@rack1-a.example"
housekeeping_cpu = 0
"""


@fuzzed(50)
@given(order=broken(ORDERS), answer=broken(ANSWERS))
def test_a_broken_message_is_read_or_refused(order: bytes, answer: bytes) -> None:
    for decode, said in ((protocol.decode_order, order), (protocol.decode_answer, answer)):
        try:
            with in_time():
                found = decode(said)
        except UnreadableError as error:
            assert error.reason
        else:
            assert decode(protocol.encode(found)) == found


@fuzzed(40)
@given(content=broken([HOSTS]))
def test_a_broken_inventory_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "hosts.toml"
    path.write_bytes(content)
    try:
        with in_time():
            inventory.load(path)
    except StudyError as error:
        assert str(path) in error.message and error.hint and len(error.message) < 2000


def test_a_broken_summary_is_made_anew(tmp_path: Path) -> None:
    """Whatever stands where it was kept, what is read is what the run says."""
    path = a_fleet(tmp_path, [FleetHostMade("a", FAST)])
    (run,) = (path / "hosts" / "a").iterdir()
    (known,) = pooled.summaries(path, [run], jobs=1)
    (place,) = (path / "summaries").iterdir()
    kept = place.read_bytes()

    @fuzzed(25)
    @given(broken([kept, kept.partition(b"\n")[2]]))
    def every(content: bytes) -> None:
        place.unlink(missing_ok=True)
        place.write_bytes(content)
        with in_time():
            assert pooled.summaries(path, [run], jobs=1) == [known]
        assert place.read_bytes() == kept

    every()


def test_a_broken_log_is_read_or_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["a", "b"])
    fleet.coordinator().conduct()
    log = fleet.folder.path / "log.jsonl"
    whole = log.read_bytes()

    @fuzzed(40)
    @given(broken([whole]))
    def every(content: bytes) -> None:
        log.write_bytes(content)
        try:
            with in_time():
                FleetState.of(FleetFolder(fleet.folder.path).records())
        except RunError as error:
            assert error.hint and len(error.message) < 3000

    every()
