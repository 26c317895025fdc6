"""SPEC CPU 2017, where the user has it: one benchmark of the suite a cell, run by SPEC's own `runcpu`.

**Not verified on real output.** SPEC CPU is proprietary and was not at hand: the command line and the CSV follow SPEC's
public documentation, and the tests read constructed files. Whoever has it: please hold a first run against its CSV.

Sources: https://www.spec.org/cpu2017/Docs/runcpu.html, .../Docs/result-fields.html
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
from pathlib import Path

import msgspec

from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Outputs, Places, Procedure, Reading, Step
from hugewise.model.workload import Launch, Missing, Parameter
from hugewise.reading import UnreadableError, believing, figure
from hugewise.workloads._micro import whole_pages
from hugewise.workloads._staged import StagedWorkload, Values, integer

_CSV = re.compile(r"CPU2017\.\d+\..*\.csv")
_TABLE = "Full Results Table"


class SpecRow(msgspec.Struct, frozen=True):
    """One run of a benchmark: seconds, SPEC's ratio (None where it gives none), and S where its result was right."""

    benchmark: str
    run_s: float | None
    ratio: float | None
    status: str


class SpecCpu(StagedWorkload):
    """One benchmark under runcpu, from binaries that the user has built; times and ratios are those of SPEC's CSV."""

    name = "speccpu"
    description = "SPEC CPU 2017 by its own runcpu (not verified on real output: the suite is the user's)"
    account = "caller"
    choices = (("input", ("test", "train", "ref")),)
    least = (("copies", 1), ("iterations", 1))
    parameters = (
        Parameter("spec", "text", "", "the folder where SPEC CPU 2017 is installed"),
        Parameter("program", "text", "505.mcf_r", "a benchmark of the suite; a list makes a cell of each"),
        Parameter("config", "text", "", "name of the user's config file below its config/, by which it was built"),
        Parameter("input", "text", "test", "size of SPEC's inputs: test, train or ref"),
        Parameter("copies", "integer", 1, "copies at once (rate benchmarks)"),
        Parameter("iterations", "integer", 1, "runs of the benchmark in an attempt; the median is reported"),
        Parameter("pool_bytes", "size", 0, "hugetlb memory to reserve under hugetlb policies"),
    )
    metrics = (
        Metric("run_s", "s", "lower", "SPEC's run time of the benchmark (median of the iterations)"),
        Metric("ratio", "ratio", "higher", "SPEC's ratio: reference time over run time; only with input ref"),
    )
    # Not measured: few of its programs are known to take nearly all their memory from malloc in large blocks.
    delivered_share = 0.7

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        if re.fullmatch(r"\d{3}\.\w+", str(values["program"])) is None:
            return f"program = {values['program']!r} is no benchmark's name; write for example 505.mcf_r"
        if treatment.target.kind == "hugetlb" and not treatment.surplus and not values["pool_bytes"]:
            return "it needs to know how much to reserve: set pool_bytes"
        return super().refuses(treatment, values)

    def missing(self, values: Values) -> tuple[Missing, ...]:
        spec, config = str(values["spec"]), str(values["config"])
        if not spec:
            return (Missing("SPEC CPU 2017 is proprietary: name the folder where it is installed as spec"),)
        if not (Path(spec) / "bin" / "runcpu").is_file():
            return (Missing(f"{spec}: there is no SPEC CPU 2017 here (no bin/runcpu)"),)
        names = (f"{config}.cfg", config)
        if not config or not any((Path(spec) / "config" / name).is_file() for name in names):
            return (Missing(f"config = {config!r}: no such file below {spec}/config"),)
        return ()

    def pooled(self, treatment: Treatment, values: Values) -> int:
        return whole_pages(integer(values, "pool_bytes"), treatment.target.size)

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:
        """Return `runcpu --nobuild` as the owner of the suite, whose CSV is copied."""
        spec = str(Path(str(values["spec"])).expanduser().absolute())
        # Variables that SPEC's shrc exports, which a shell would source.
        environment = {
            "SPEC": spec,
            "SPECPERLLIB": f"{spec}/bin/lib:{spec}/bin",
            "PATH": f"{spec}/bin:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "LC_ALL": "C",
        }
        argv = (
            f"{spec}/bin/runcpu",
            f"--config={values['config']}",
            "--action=run",
            "--nobuild",
            "--noreportable",
            "--tune=base",
            f"--size={values['input']}",
            f"--copies={values['copies']}",
            f"--iterations={values['iterations']}",
            "--output_format=csv",
            str(values["program"]),
        )
        begun = f"{places.run}/begun"
        newer = ("-newer", begun, "-name", "CPU2017.*.csv", "-exec", "cp", "-t", places.run, "{}", "+")
        return Procedure(
            before=(Step(name="begun", argv=("touch", begun)),),
            timed=Launch(argv=argv, proof="twin", environment={**environment, **treatment.environment}, cwd=spec),
            after=(Step(name="results", argv=("find", f"{spec}/result", *newer)),),
        )

    def read(self, outputs: Outputs, values: Values) -> Reading:
        """Return the benchmark's rows of SPEC's CSV. Raises ValueError where they are not there."""
        files = [text.decode(errors="replace") for text in outputs.files(_CSV)]
        if not files:
            raise ValueError(f"runcpu wrote no CSV: {outputs.stdout()[-300:]!r}")
        program = str(values["program"])
        rows = [row for text in files for row in results(text) if row.benchmark == program]
        if not rows:
            raise ValueError(f"{program} is not in SPEC's CSV")
        bad = sorted({row.status for row in rows} - {"S"})
        known = [row.ratio for row in rows if row.ratio is not None]
        metrics: dict[str, float | None] = {"run_s": _median([row.run_s for row in rows if row.run_s is not None])}
        metrics["ratio"] = _median(known)
        absent = {} if known else {"ratio": "SPEC gives a ratio for its reference inputs only (input = ref)"}
        if metrics["run_s"] is None:
            raise ValueError(f"{program}: SPEC's CSV has no run time")
        return Reading(
            metrics=metrics,
            absent=absent,
            facts={"iterations": len(rows), "input": str(values["input"])},
            problem=f"{program}: SPEC did not validate it (status {', '.join(bad)})" if bad else None,
        )


def results(text: str) -> list[SpecRow]:
    """Return the rows of the table of all runs in SPEC's CSV.

    A line names the table; the next one with anything in it names the columns, `Est.` before those of a run that is not
    to be published, `Rate` or `Ratio` by the suite; an empty line ends it. Raises ValueError where it is not so.
    """
    with believing("SPEC's CSV"):
        lines = [[cell.strip() for cell in line] for line in csv.reader(io.StringIO(text, newline=""))]
    named = next((index for index, line in enumerate(lines) if line and line[0] == _TABLE), None)
    if named is None:
        raise ValueError(f"no {_TABLE!r} in SPEC's CSV: {text[:100]!r}")
    table = list(itertools.dropwhile(lambda line: not any(line), lines[named + 1 :]))
    head = [name.removeprefix("Est. ") for name in table[0]] if table else []
    ratio = next((name for name in ("Base Ratio", "Base Rate") if name in head), "")
    lacking = [name for name in ("Benchmark", "Base Run Time", "Base Status", ratio) if name not in head]
    if lacking:
        raise ValueError(f"{_TABLE} of SPEC's CSV has not the columns expected, but {head}")
    rows = []
    for cells in itertools.takewhile(any, table[1:]):
        row = dict(zip(head, cells, strict=False))
        time, rate, status = (row.get(name, "") for name in ("Base Run Time", ratio, "Base Status"))
        rows.append(SpecRow(benchmark=cells[0], run_s=_float(time), ratio=_float(rate), status=status))
    return rows


def _float(text: str) -> float | None:
    try:
        value = figure(text)
    except UnreadableError:
        return None
    return value if value > 0 else None


def _median(values: list[float]) -> float | None:
    # Of an even number the lower one, as SPEC takes it.
    return sorted(values)[(len(values) - 1) // 2] if values else None


WORKLOAD = SpecCpu()
