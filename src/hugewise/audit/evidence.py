"""What this host's own runs say of a setting: for the same program, on the same machine, under the same kernel.

A run counts where its machine and kernel are this host's, and what it measured is the very file that runs here: the
same path, and not changed since the run began (its ctime, which an upgrade sets). Interpreters and shells are no such
file: what they run decides. Runs in guests speak for guests.

A setting is *contradicted here* where the newest run that decided between it and another policy found the other one
better; *supported here* where runs decided and none did (better, or equivalent within the margin); else *not tested
here*. Each pair of policies is judged by its newest decided run: an older one is never chosen for what it says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from hugewise.audit.facts import HostFacts
from hugewise.audit.root import Root
from hugewise.errors import UserError
from hugewise.model.results import CellResult, Comparison, Results, Verdict
from hugewise.model.workload import ParameterValue
from hugewise.store.folder import RunFolder
from hugewise.store.records import CellRecord, Opened

__all__ = ["Label", "Searched", "Tried", "judge", "search"]

State = Literal["supported here", "contradicted here", "not tested here"]

_MOST_RUNS = 40
_SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INTERPRETERS = ("python", "perl", "ruby", "node", "java", "bash", "sh", "dash", "php", "lua", "guile", "Rscript")
_SERVERS = {"redis": "redis-server", "memcached": "memcached", "mysql-ro": "mariadbd", "pgbench": "postgres"}
_POSTGRES = "/usr/lib/postgresql"
_OPPOSITE: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}


class Label(msgspec.Struct, frozen=True):
    """What runs say of a setting: in words, and the folders of the runs that say so, the newest first."""

    state: State = "not tested here"
    said: str = ""
    runs: tuple[str, ...] = ()


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of a run that counts here: `arm` and `baseline` are policies; ratios are arm/baseline."""

    program: str
    run: str
    started: float
    cell: str
    metric: str
    arm: str
    baseline: str
    verdict: Verdict
    ratio: float | None


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """What the results folder held: comparisons that count; runs of this machine and kernel of other programs; those of
    another machine or kernel; folders that cannot be read; runs left out because there were too many.
    """

    tried: tuple[Tried, ...] = ()
    runs: int = 0
    of_others: int = 0
    elsewhere: int = 0
    unread: int = 0
    left_out: int = 0


def search(results: Path, facts: HostFacts, root: Root, programs: Iterable[str]) -> Searched:
    """The comparisons of `programs` (paths without links) in the runs below `results`."""
    wanted = set(programs)
    counting: list[tuple[Opened, RunFolder, dict[str, str]]] = []
    of_others = elsewhere = unread = 0
    for place in _folders(results):
        folder = RunFolder(place)
        try:
            (place / "run.jsonl").lstat()
            opened = folder.opened()
        except (FileNotFoundError, NotADirectoryError):
            continue  # no run
        except (OSError, UserError):
            unread += 1
            continue
        if not _same_host(opened, facts):
            elsewhere += 1
        elif cells := {cell.id: path for cell in opened.cells if (path := _program(root, opened, cell)) in wanted}:
            counting.append((opened, folder, cells))
        else:
            of_others += 1
    counting.sort(key=lambda each: each[0].t, reverse=True)
    tried: list[Tried] = []
    if counting:
        from hugewise.analysis import analysis  # noqa: PLC0415  (with the tests behind it: most audits need none)
    for _, folder, cells in counting[:_MOST_RUNS]:
        try:
            tried += _tried(analysis.analyze(folder.path), cells)
        except (OSError, UserError):
            unread += 1
    return Searched(
        tried=tuple(tried),
        runs=len(counting),
        of_others=of_others,
        elsewhere=elsewhere,
        unread=unread,
        left_out=max(0, len(counting) - _MOST_RUNS),
    )


def _folders(results: Path) -> Iterator[Path]:
    try:
        studies = sorted(results.iterdir())
    except OSError:
        return
    for study in studies:
        try:
            yield from sorted(study.iterdir())
        except OSError:
            continue


def _same_host(opened: Opened, facts: HostFacts) -> bool:
    kernel = opened.host.get("kernel")
    release = kernel.get("release") if isinstance(kernel, dict) else None
    here = facts.machine is not None and opened.host.get("machine") == facts.machine and release == facts.kernel
    return here and opened.guests is None


def _program(root: Root, opened: Opened, cell: CellRecord) -> str | None:
    """The path without links of what a cell measured, where it is still the file that was measured."""
    named = _named(root, cell.workload, cell.values)
    if not named:
        return None
    if "/" in named:
        candidates = [named if named.startswith("/") else f"{opened.cwd}/{named}"]
    else:
        here = os.environ.get("PATH", "") if root.folder == Path("/") else ""
        candidates = [f"{folder}/{named}" for folder in f"{here}:{_SEARCHED}".split(":") if folder.startswith("/")]
    found = next((real for each in candidates if (real := root.real(each)) is not None), None)
    status = None if found is None else root.status(found)
    if found is None or status is None or status.st_ctime > opened.t:
        return None
    return None if PurePosixPath(found).name.rstrip("0123456789.") in _INTERPRETERS else found


def _named(root: Root, workload: str, values: dict[str, ParameterValue] | object) -> str | None:
    """The program of a workload as its parameters name it."""
    told = values if isinstance(values, dict) else {}
    if workload in ("command", "service"):
        argv = told.get("argv" if workload == "command" else "server")
        return str(argv[0]) if isinstance(argv, list | tuple) and argv else None
    if workload == "redis" and told.get("allocator", "jemalloc") != "jemalloc":
        return None
    server = _SERVERS.get(workload)
    if workload == "tpcc":
        server = "postgres" if told.get("server", "postgres") == "postgres" else "mariadbd"
    folder = told.get({"pgbench": "postgres", "mysql-ro": "mariadb", "tpcc": "folder"}.get(workload, ""), "")
    if server == "postgres" and not folder:
        versions = [name for name in root.names(_POSTGRES) if root.real(f"{_POSTGRES}/{name}/bin/postgres")]
        return f"{_POSTGRES}/{versions[0]}/bin/postgres" if len(versions) == 1 else None
    return f"{folder}/{server}" if folder and server else server


def _tried(results: Results, cells: dict[str, str]) -> Iterator[Tried]:
    for cell in results.cells:
        if cell.cell in cells:
            for one in cell.comparisons:
                yield _of(results, cell, one, cells[cell.cell])


def _of(results: Results, cell: CellResult, one: Comparison, program: str) -> Tried:
    policies = {arm.arm: arm.policy for arm in cell.arms}
    return Tried(
        program=program,
        run=results.folder,
        started=results.started,
        cell=cell.cell,
        metric=one.metric,
        arm=policies.get(one.arm, one.arm),
        baseline=policies.get(one.baseline, one.baseline),
        verdict=one.verdict,
        ratio=one.ratio,
    )


def judge(
    tried: Iterable[Tried], programs: Iterable[str], policies: Sequence[str], others: Sequence[str] | None = None
) -> Label:
    """What the comparisons of `programs` say of `policies` against `others` (None: against any other).

    See the head of this file. Comparisons of different cells or metrics are different questions: each has its newest.
    """
    wanted = set(programs)
    newest: dict[tuple[str, ...], tuple[Tried, str, Verdict]] = {}
    undecided: list[Tried] = []
    for one in sorted(tried, key=lambda each: each.started, reverse=True):
        inverse = one.baseline in policies
        other = one.arm if inverse else one.baseline
        if one.program not in wanted or inverse == (one.arm in policies):
            continue
        if others is not None and other not in others:
            continue
        verdict = _OPPOSITE.get(one.verdict, one.verdict) if inverse else one.verdict
        if verdict in ("undecided", "none"):
            undecided.append(one)
        else:
            newest.setdefault((one.program, one.cell, one.metric, other), (one, other, verdict))
    against = [each for each in newest.values() if each[2] == "worse"]
    chosen = against or list(newest.values())
    if not chosen:
        said = f"no verdict in {len(undecided)} comparison{'s' if len(undecided) > 1 else ''}" if undecided else ""
        return Label("not tested here", said, tuple(dict.fromkeys(one.run for one in undecided)))
    said = "; ".join(dict.fromkeys(_words(*each) for each in chosen[:3]))
    runs = tuple(dict.fromkeys(one.run for one, _, _ in chosen))
    return Label("contradicted here" if against else "supported here", said, runs)


def _words(one: Tried, other: str, verdict: Verdict) -> str:
    own = one.arm if one.baseline == other else one.baseline
    found = {"better": "better than", "worse": "worse than", "equivalent": "equivalent to"}.get(verdict, verdict)
    change = "" if one.ratio is None else f" ({one.metric}, {one.arm}/{one.baseline} {one.ratio:.3f})"
    return f"{own} was {found} {other}{change}"
