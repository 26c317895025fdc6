"""A run from beginning to end: started or resumed, and held in as many sessions as it takes.

A run has one session (`steps`), one more each time it is resumed, and one for as many pairs as the study says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from hugewise import beneath, files
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.model import trial
from hugewise.model.host import CLOCK, ClientHost, Clock
from hugewise.plan.plan import Plan
from hugewise.session import identity, progress
from hugewise.session.clients import Reached, placed
from hugewise.session.feasibility import make_plan, must_have_cells, provide
from hugewise.session.steps import Session
from hugewise.store.folder import RunFolder
from hugewise.study.study import Study


def run(
    study: Study,
    results: Path,
    *,
    seed: bytes | None = None,
    listener: progress.Listener = lambda _: None,
    on_step: Callable[[str], None] = lambda _: None,
    calibrating: bool = False,
    lock: HostLock | None = None,
    client: ClientHost | None = None,
    clock: Clock = CLOCK,
    command: Sequence[str] = (),
) -> RunFolder:
    """Start a new run of `study` below the folder `results` and conduct it to its end.

    An interrupt ends it early, with everything restored and the run ready to be resumed. A run that is a stream of a
    calibration (`calibrating`) needs none itself. `lock`: whose holder may hold the host for more than this run.
    `client` is the host that clients of servers are on (`clients.placed`). `command`: the command line that asked.
    """
    must_be_trusted(results)
    study = placed(study, client)
    seed = seed or trial.new_seed()
    guests = provide(study, lambda text: listener(progress.Message(text)))
    plan = identity.planned(study, guests)
    must_have_cells(study, plan)
    if not calibrating and (why := _too_small(study, plan, results)) is not None:
        listener(progress.BudgetMessage(why))
    written = Path(study.file).read_text(encoding="utf-8") if study.file and Path(study.file).is_file() else None
    folder = RunFolder.create(
        results, study.name, study_json=msgspec.json.encode(study), study_toml=written, seed=seed, clock=clock
    )
    lock = lock or HostLock(LocalHost())
    session = Session(study, folder, seed, plan, None, listener, on_step, lock, guests, clients=Reached(client))
    session.command = tuple(command)
    if not calibrating:
        session.results = results
    try:
        _hold(session)
    except BaseException:
        discard_unbegun(folder.path)
        raise
    return folder


def resume(
    path: Path,
    *,
    listener: progress.Listener = lambda _: None,
    on_step: Callable[[str], None] = lambda _: None,
    lock: HostLock | None = None,
) -> RunFolder:
    """Continue the run in the folder `path`, with the same study, seed and policies. Raises RunError."""
    must_be_trusted(path)
    folder = RunFolder(path, CLOCK)
    run = folder.read()
    study, seed = run.study, folder.seed(run)
    with files.storing(f"the run's folder {path}"):
        folder.hold()
    identity.check_study(path, study)
    identity.check_host(path, run.opened, LocalHost())
    guests = provide(study, lambda text: listener(progress.Message(text)))
    plan = make_plan(study, guests=guests, in_turns=identity.in_turns(run.opened))
    clients, lock = Reached(run.opened.client), lock or HostLock(LocalHost())
    session = Session(study, folder, seed, plan, run, listener, on_step, lock, guests, clients=clients)
    if run.opened.earlier is not None:
        session.results = folder.results(study.name)
    _hold(session)
    return folder


def host_lock(listener: progress.Listener, *, anyway: bool = False, wait: bool = False) -> HostLock:
    """Return the lock of this host. `anyway`: as root, beside an account that holds the lock of accounts. `wait` for
    another run to end, which the listener hears.
    """

    def told(text: str) -> None:
        listener(progress.Message(text))

    return HostLock(LocalHost(), anyway=anyway, wait=told if wait else None)


def _too_small(study: Study, plan: Plan, results: Path) -> str | None:
    from hugewise.analysis import budget  # noqa: PLC0415  (numpy and the tests behind it)

    return budget.too_small(study, plan.cells, results)


def discard_unbegun(path: Path) -> None:
    """Remove the folder of a run that was refused before its first record: nothing could be reported or resumed."""
    if not (path / "run.jsonl").exists():
        with suppress(OSError):  # a file that cannot be removed means as little as none
            beneath.discard(path)
            path.parent.rmdir()  # the study's, where it has no other run


def must_be_trusted(folder: Path) -> None:
    """Raise UserError where hugewise is root and another account could change the folder's kept data, calibration, seed
    or records.
    """
    hint = "name a folder of root's, such as --results /root/results; of who calls sudo, their own will do"
    files.own(folder, f"the results in {folder}", hint)


def _hold(session: Session) -> None:
    with closing(session.folder), session.host_lock:  # no other run between two sessions
        while not session.hold():
            session.say("a new session: everything is put back and set up again")
            study, folder, guests = session.study, session.folder, session.guests
            run = folder.read()
            plan = make_plan(study, guests=guests, in_turns=identity.in_turns(run.opened))
            shared = session.listener, session.on_step, session.host_lock, guests
            clients = Reached(session.clients.host)
            session = Session(study, folder, session.seed, plan, run, *shared, clients=clients)
        if session.ended:
            with files.storing(f"the run's folder {session.folder.path}"):
                session.folder.hand_over()
