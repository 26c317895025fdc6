"""Slurm as an engine, by programs that print what Slurm's print (`tests.fleet.queued`): what is done by state."""

from pathlib import Path

import pytest

from hugewise.errors import HostLostError, HugewiseError, UserError
from hugewise.fleet import inventory, protocol
from hugewise.fleet import slurm as queue
from hugewise.fleet.engine import ask
from hugewise.fleet.protocol import (
    Assignment,
    AssignmentSeen,
    BeginOrder,
    Done,
    EndOrder,
    FleetQuestion,
    HelloOrder,
    LookOrder,
)
from hugewise.fleet.slurm import Node, Queue, QueuedJob, SlurmEngine
from hugewise.fleet.spool import KeeperRecord, SpoolEntry
from tests.build import known
from tests.fleet.queued import QueuedSlurm
from tests.fleet.test_conduct import GREETING

ONE, TWO = Assignment("f", 1), Assignment("f", 2)
QUESTION = FleetQuestion(text="name = 'small'")
HOSTS = """
[fleet]
engine = "slurm"
installation = "{folder}/install"
spool = "{folder}/shared"
partition = "all"
sbatch = ["--account=mm"]

[[host]]
name = "a"
slurm = "n1"

[[host]]
name = "b"
slurm = "n2"
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueuedSlurm:
    return QueuedSlurm(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def engine(slurm: QueuedSlurm) -> SlurmEngine:
    return SlurmEngine(inventory.parse(HOSTS.format(folder=slurm.folder), "hosts.toml")).__enter__()


def install(slurm: QueuedSlurm, script: str) -> None:
    """What a job finds in the place of hugewise."""
    path = slurm.folder / "install/bin/hugewise"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def begin(engine: SlurmEngine, assignment: Assignment = ONE) -> None:
    assert ask(engine, "a", BeginOrder(assignment=assignment, question=QUESTION)) == Done()


def look(engine: SlurmEngine, assignment: Assignment = ONE) -> AssignmentSeen:
    answer = ask(engine, "a", LookOrder(assignment=assignment))
    assert isinstance(answer, AssignmentSeen)
    return answer


def spooled(slurm: QueuedSlurm, assignment: Assignment = ONE) -> SpoolEntry:
    return SpoolEntry(slurm.folder / "shared/a/f" / str(assignment.number))


# -- jobs of an assignment


def test_a_run_is_queued_once_as_a_job_whose_body_is_its_keeper(engine: SlurmEngine, slurm: QueuedSlurm) -> None:
    begin(engine)
    begin(engine)
    assert slurm.told("sbatch") == ["--parsable"]
    folder = slurm.folder / "shared/a/f/1"
    options = f"""job-name=hugewise-f-1-a nodelist=n1 nodes=1 exclusive no-requeue export=NIL
        output={folder}/job.txt open-mode=append partition=all account=mm""".split()
    assert slurm.job(12).splitlines() == [
        "#!/bin/sh",
        *(f"#SBATCH --{option}" for option in options),
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "export PATH",
        f"exec {slurm.folder}/install/bin/hugewise fleet keep {folder}",
    ]


def test_a_job_that_waits_says_for_what_and_is_cancelled(engine: SlurmEngine, slurm: QueuedSlurm) -> None:
    begin(engine)
    slurm.become(12, "PENDING", "Resources")
    waits = look(engine)
    assert (waits.state, waits.keeper, waits.reason) == ("starting", True, "its job 12 is PENDING (Resources)")
    assert ask(engine, "a", EndOrder(assignment=ONE)) == Done()
    assert slurm.told("scancel") == ["--quiet 12"]
    over = look(engine)
    assert (over.state, over.reason, over.run) == ("interrupted", "ended by its coordinator", None)
    assert slurm.states() == ["CANCELLED"]  # and no other is queued


def test_a_job_that_runs_is_told_to_end_by_a_signal_and_is_not_over_yet(
    engine: SlurmEngine, slurm: QueuedSlurm
) -> None:
    begin(engine)
    slurm.become(12, "RUNNING")
    assert look(engine).reason is None
    assert ask(engine, "a", EndOrder(assignment=ONE)) == Done()
    assert slurm.told("scancel") == ["--quiet --signal=TERM --batch 12"]
    assert spooled(slurm).end_ordered()
    assert look(engine).state == "starting"


@pytest.mark.parametrize(
    ("state", "over"),
    [
        *((state, True) for state in ("CANCELLED", "NODE_FAIL", "TIMEOUT", "COMPLETED")),
        *((state, False) for state in ("CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUE_HOLD")),
    ],
)
def test_a_job_that_ended_without_a_last_word_and_no_other_is_queued_again(
    engine: SlurmEngine, slurm: QueuedSlurm, state: str, over: bool
) -> None:
    begin(engine)
    slurm.become(12, state)
    seen = look(engine)
    assert seen.reason == "its job 13 is PENDING" if over else seen.keeper
    assert slurm.states() == ([state, "PENDING"] if over else [state])


def test_what_has_ended_is_not_asked_of_slurm(engine: SlurmEngine, slurm: QueuedSlurm) -> None:
    begin(engine)
    slurm.become(12, "COMPLETED")
    assert spooled(slurm).keep(KeeperRecord(state="ended"))
    slurm.refuse("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    assert look(engine).state == "ended"


def test_what_no_job_has_is_over_once_it_is_ended(engine: SlurmEngine, slurm: QueuedSlurm) -> None:
    begin(engine)
    slurm.become(12, "NODE_FAIL")
    assert ask(engine, "a", EndOrder(assignment=ONE)) == Done()
    assert slurm.told("scancel") == []
    assert look(engine).state == "interrupted"
    assert ask(engine, "a", EndOrder(assignment=TWO)) == Done()  # never begun there
    assert not spooled(slurm, TWO).path.exists()


def test_an_assignment_that_a_later_one_has_overtaken_is_not_queued_again(
    engine: SlurmEngine, slurm: QueuedSlurm
) -> None:
    begin(engine)
    begin(engine, TWO)
    (slurm.folder / "jobs").write_text("13|RUNNING|hugewise-f-2-a|None\n")  # Slurm forgets jobs after some minutes
    seen = look(engine)
    assert (seen.keeper, seen.reason) == (False, "no job of it is queued")
    assert slurm.states() == ["RUNNING"]


def test_a_node_that_is_drained_is_told_with_its_reason_and_its_cure(engine: SlurmEngine, slurm: QueuedSlurm) -> None:
    begin(engine)
    slurm.become(12, "PENDING", "ReqNodeNotAvail, UnavailableNodes:n1")
    slurm.node("n1", "drained", "bad disk")
    with pytest.raises(HostLostError) as lost:
        look(engine)
    assert lost.value.message == (
        "a: the node n1 is drained (bad disk); its job 12 is PENDING (ReqNodeNotAvail, UnavailableNodes:n1)"
    )
    assert lost.value.hint == "when it is mended: scontrol update nodename=n1 state=resume"
    slurm.become(12, "RUNNING")  # a node that is draining lets its job end
    assert look(engine).state == "starting"


# -- who a host is


def test_a_host_says_who_it_is_by_a_job_and_nothing_of_it_stays(engine: SlurmEngine, slurm: QueuedSlurm) -> None:
    (slurm.folder / "answer").write_bytes(protocol.encode(GREETING))
    install(slurm, f'echo "$@" > {slurm.folder}/words; cat > {slurm.folder}/order; cat {slurm.folder}/answer')
    slurm.run_at_once()
    assert ask(engine, "a", HelloOrder(question=QUESTION)) == GREETING
    shared = slurm.folder / "shared/a"
    assert (slurm.folder / "words").read_text() == f"fleet obey --spool {shared}\n"
    assert protocol.decode_order((slurm.folder / "order").read_bytes()) == HelloOrder(question=QUESTION)
    assert list(shared.iterdir()) == []
    assert slurm.told("scancel") == []


def test_a_host_whose_job_fails_says_its_last_words(engine: SlurmEngine, slurm: QueuedSlurm) -> None:
    slurm.run_at_once()
    with pytest.raises(
        HugewiseError, match=r"^a: hugewise fleet obey on n1: .*/install/bin/hugewise: not found$"
    ) as why:
        ask(engine, "a", HelloOrder())
    assert known(why.value.hint).startswith("install it where the nodes see it")
    install(slurm, "exit 1")
    with pytest.raises(HugewiseError, match="^a: hugewise fleet obey on n1: it gave no answer$"):
        ask(engine, "a", HelloOrder())
    assert list((slurm.folder / "shared/a").iterdir()) == []


def test_a_host_whose_job_does_not_begin_in_time_is_lost_and_its_job_is_cancelled(
    engine: SlurmEngine, slurm: QueuedSlurm
) -> None:
    slurm.node("n2", "down*", "Not responding")
    with pytest.raises(HostLostError) as lost:
        ask(engine, "b", HelloOrder(), timeout=0)
    message = "b: its job 12 is PENDING: not run within 0 s; the node n2 is down* (Not responding)"
    assert (lost.value.message, lost.value.hint) == (message, "see: squeue -w n2")
    assert slurm.states() == ["CANCELLED"]
    assert list((slurm.folder / "shared/b").iterdir()) == []


def test_a_shared_folder_that_cannot_be_made_is_named(engine: SlurmEngine, slurm: QueuedSlurm) -> None:
    (slurm.folder / "shared").write_text("")
    with pytest.raises(HugewiseError, match=f"^a: {slurm.folder}/shared: File exists$") as why:
        ask(engine, "a", HelloOrder())
    assert why.value.hint == "name a shared folder: spool = ..."


# -- before anything


def test_a_node_that_slurm_does_not_know_is_an_error_before_anything(slurm: QueuedSlurm) -> None:
    (slurm.folder / "nodes").write_text("n1|idle|none\n")
    with pytest.raises(UserError, match="^hosts.toml: host b: slurm = 'n2': Slurm has no such node$"):
        SlurmEngine(inventory.parse(HOSTS.format(folder=slurm.folder), "hosts.toml")).__enter__()


def test_a_controller_that_does_not_answer_is_an_error_before_anything(slurm: QueuedSlurm) -> None:
    slurm.refuse("sinfo", "slurm_load_partitions: Unable to contact slurm controller (connect failure)")
    with pytest.raises(UserError) as why:
        Queue().must_be_there()
    assert why.value.message == (
        'engine = "slurm": sinfo: slurm_load_partitions: Unable to contact slurm controller (connect failure)'
    )
    assert why.value.hint == "see: sinfo; scontrol ping"


@pytest.mark.parametrize("name", ["sbatch", "squeue", "scancel", "sinfo"])
def test_a_program_of_slurms_that_is_missing_is_named_with_its_package(
    slurm: QueuedSlurm, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (slurm.folder / "programs" / name).unlink()
    only = str(slurm.folder / "programs")
    monkeypatch.setattr("hugewise.machine.programs.PATH", only)
    monkeypatch.setenv("PATH", only)
    with pytest.raises(UserError, match=f'^engine = "slurm": {name} is not there$') as why:
        Queue().must_be_there()
    assert why.value.hint == "apt install slurm-client"


def test_what_sbatch_refuses_is_said_in_its_words(slurm: QueuedSlurm) -> None:
    message = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    slurm.refuse("sbatch", message)
    with pytest.raises(HugewiseError) as why:
        Queue().submit("#SBATCH --job-name=x\n")
    assert why.value.message == f"sbatch: {message}"


def test_ending_a_job_that_has_just_ended_is_no_error_and_one_that_lives_is_told(slurm: QueuedSlurm) -> None:
    queue = Queue()
    job = queue.submit("#SBATCH --job-name=x\n")
    slurm.become(job.number, "RUNNING")
    assert known(queue.job("x")).runs
    slurm.become(job.number, "COMPLETED")
    queue.cancel(job, "--signal=TERM", "--batch")
    slurm.become(job.number, "RUNNING")
    slurm.refuse("scancel", "scancel: error: Kill job error on job id 12: Invalid user id")
    with pytest.raises(HugewiseError, match="Invalid user id"):
        queue.cancel(job, "--signal=TERM", "--batch")


def test_what_is_no_number_of_a_job_is_an_error(slurm: QueuedSlurm) -> None:
    (slurm.folder / "programs/sbatch").write_text("#!/bin/sh\ncat > /dev/null\necho 'no \033[1mnumber'\n")
    with pytest.raises(HugewiseError, match="^sbatch gives no number of a job: no \N{REPLACEMENT CHARACTER}"):
        Queue().submit("#SBATCH --job-name=x\n")


# -- what it knows


def test_of_jobs_with_one_name_the_newest_counts_and_other_lines_do_not(slurm: QueuedSlurm) -> None:
    (slurm.folder / "jobs").write_text(
        "12|CANCELLED|x|None\n9|COMPLETED|x|None\n13_[1-4]|PENDING|x|Priority\n\n14|RUNNING|y|a|b\n"
    )
    queue = Queue()
    assert queue.job("x") == QueuedJob(12, "x", "CANCELLED", "None")
    assert queue.job("y") == QueuedJob(14, "y", "RUNNING", "a|b")
    assert queue.job("z") is None


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        *((state, True) for state in ("idle", "mixed", "idle~", "allocated+")),
        *((state, False) for state in ("idle*", "down*", "draining", "drained", "maint", "")),
    ],
)
def test_a_node_is_usable_where_a_job_begins_by_itself(slurm: QueuedSlurm, state: str, usable: bool) -> None:
    slurm.node("n1", state, "why|not")
    node = Queue().nodes()["n1"]
    assert node == Node(state, "why|not")
    assert node.usable is usable


def test_one_answer_serves_all_who_ask_until_a_job_is_queued_or_cancelled(
    slurm: QueuedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_FRESH_S", 1e9)
    found = Queue()
    assert (found.job("x"), found.job("x"), len(found.nodes()), len(found.nodes())) == (None, None, 2, 2)
    assert (len(slurm.told("squeue")), len(slurm.told("sinfo"))) == (1, 1)
    job = found.submit("#SBATCH --job-name=x\n")
    assert found.job("x") == QueuedJob(12, "x", "PENDING", "None") and job.number == 12
    found.cancel(job)
    assert known(found.job("x")).state == "CANCELLED"
    assert (len(slurm.told("squeue")), len(slurm.told("sinfo"))) == (3, 1)
    assert slurm.told("squeue")[0] == "--noheader --me --states=all --format=%i|%T|%j|%r"
    assert slurm.told("sinfo") == ["--noheader --Node --format=%N|%T|%E"]
