"""Any command: its elapsed time, CPU time, faults and peak memory under each policy, and numbers from its output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hugewise.machine import loader
from hugewise.model.metric import COMMON, Metric
from hugewise.model.policy import Treatment, laid_pool
from hugewise.model.workload import Launch, Missing, Parameter, ParameterValue, Proof, RunsAs
from hugewise.workloads._micro import whole_pages
from hugewise.workloads._outputs import extract, metrics_of, named_in
from hugewise.workloads._staged import missing_named


class Command:
    """A command of the user's. The proof comes from its memory at exit; see `hugewise.model.workload.Proof`."""

    name = "command"
    description = "any command, timed as a whole"
    parameters = (
        Parameter("argv", "argv", None, "the command and its arguments, as a list; no shell is involved"),
        Parameter("proof", "text", "exit", "exit, twin (an untimed second run, every process scanned) or counters"),
        Parameter("pool_bytes", "size", 0, "hugetlb memory to reserve for the command under hugetlb policies"),
        Parameter(
            "prepare",
            "texts",
            (),
            "a command, as a list, that is run before each attempt, outside its timed region; no shell is involved",
        ),
        Parameter("stdin", "text", "", "a file that is its standard input, by its whole path; default: no input"),
        Parameter("values", "texts", (), "metrics from its output: NAME,DIRECTION,UNIT=regex:PATTERN or ...=json:PATH"),
    )
    metrics: tuple[Metric, ...] = tuple(m for m in COMMON if m.name in ("wall_s", "cpu_s"))
    account: RunsAs = "caller"
    delivered_share = 0.95

    def refuses(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> str | None:
        if values.get("proof") not in ("exit", "twin", "counters"):
            return f"proof = {values.get('proof')!r} is not one of exit, twin, counters"
        if treatment.target.kind == "hugetlb" and not treatment.surplus and not values.get("pool_bytes"):
            return "it needs to know how much to reserve: set pool_bytes (or --pool SIZE)"
        if values.get("proof") == "counters" and treatment.mechanism == "process":
            return "the kernel's fault counters are of the whole machine: proof by counters needs root's cgroup"
        return None

    def turns_refused(self, values: Mapping[str, ParameterValue]) -> str | None:
        """Return why turns are refused: pages must be proven while frozen, no value timed by it; or None."""
        if values.get("values"):
            return "values are what the command says, and its own clock goes on while it stands still"
        if values.get("prepare"):
            return "prepare is run before each of the arms, and they are there at once: one clears what another has"
        match values.get("proof", "exit"):
            case "twin":
                return "proof = 'twin' runs the command a second time, untimed and alone, when all turns are over"
            case "counters":
                return "proof = 'counters' needs the time to itself: the kernel's fault counters cannot tell arms apart"
        return None

    def missing(self, values: Mapping[str, ParameterValue]) -> tuple[Missing, ...]:
        argv = values.get("argv")
        if not isinstance(argv, tuple) or not argv:
            return (Missing("argv is empty: name the command as a list"),)
        prepare = _prepare(values)
        asked = [argv[0], *prepare[:1]]
        return (*missing_named(asked), *_missing_input(str(values.get("stdin", ""))))

    def launch(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> Launch:
        argv = values["argv"]
        proof = values.get("proof", "exit")
        assert isinstance(argv, tuple)
        chosen: Proof = "twin" if proof == "twin" else "counters" if proof == "counters" else "exit"
        heap = values.get("pool_bytes", 0)
        assert isinstance(heap, int)
        # The same size in every arm, so that the heap is laid out alike.
        environment = loader.environment(treatment, heap)
        return Launch(
            argv=argv,
            proof=chosen,
            environment=environment,
            prepare=_prepare(values),
            stdin=str(values.get("stdin", "")),
        )

    def unlaid(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> str | None:
        argv = values.get("argv")
        return loader.unreached(argv, treatment) if isinstance(argv, tuple) and argv else None

    def named(self, values: Mapping[str, ParameterValue]) -> tuple[Metric, ...]:
        """Return the metrics that the values name. Raises ValueError when one is written wrongly."""
        return metrics_of(values)

    def parse(self, stdout: str, stderr: str, values: Mapping[str, ParameterValue]) -> Mapping[str, float]:
        """Return the values in what the command said. Raises ValueError where one is not there."""
        return {value.metric.name: extract(value, stdout, stderr) for value in named_in(values)}

    def memory(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        return 0

    def pool(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        size = values.get("pool_bytes", 0)
        assert isinstance(size, int)
        whole = treatment.target.kind == "hugetlb"
        return whole_pages(size, treatment.target.size) if whole else laid_pool(treatment.layout)[1]


def _missing_input(path: str) -> tuple[Missing, ...]:
    if not path:
        return ()
    if not Path(path).is_absolute():
        return (Missing(f"stdin = {path!r} is not a whole path: write /... before it"),)
    if Path(path).is_symlink() or not Path(path).is_file():
        return (Missing(f"stdin = {path!r} is not a file: name a file that exists, and not a link to one"),)
    return ()


def _prepare(values: Mapping[str, ParameterValue]) -> tuple[str, ...]:
    prepare = values.get("prepare", ())
    assert isinstance(prepare, tuple)
    return prepare


WORKLOAD = Command()
