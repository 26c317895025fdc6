"""A study from a TOML file, from its text, or from the command line.

    load(path)                  from a file
    parse(text, file)           from its text
    read(data, file)            from tables already parsed
    command_study(policies, argv)  `hugewise run --policy a,b -- CMD`, without a file

Every mistake raises StudyError with file, key, value and cure. Names of policies, workloads, parameters and metrics
are looked up in `hugewise.plan.cells` and `hugewise.plan.arms`, which sees the machine.

The packaged studies lie in a checkout's folder `studies`, else where the wheel put them. `hugewise run demo` means
their `demo.toml`, where no file is called `demo`.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hugewise import reading
from hugewise.errors import StudyError, UserError
from hugewise.study import keys, rules
from hugewise.study.keys import Place
from hugewise.study.study import Study, StudyScale
from hugewise.study.tables import Budget
from hugewise.study.workload import SMALL, cell_of


def folder() -> Path:
    """Return the folder of the packaged studies."""
    source = checkout()
    return source / "studies" if source is not None else Path(sys.prefix, "share", "hugewise", "studies")


def checkout() -> Path | None:
    """Return the project's folder, where this hugewise is run from its source; None where it came with a wheel."""
    source = Path(__file__).parents[3]
    return source if (source / "studies").is_dir() else None


def names() -> list[str]:
    """Return the names of the packaged studies, in order."""
    return sorted(path.stem for path in folder().glob("*.toml"))


def shipped_study(path: Path) -> Path | None:
    """Return the file of the study that is called so, or None: a path with folders or an ending names none."""
    return folder() / f"{path}.toml" if str(path) in names() else None


_MOST = 1 << 20  # bytes of a study

MOST_BLOCKS = 1000
"""Blocks of a command without a file, before its first run tells how many fit into its time."""
_SEQUENTIAL, _TIME = "sequential", "10m"


def load(path: Path, scale: str | None = None) -> Study:
    """Return the study in `path`, or the packaged one of that name, at a scale. Raises StudyError, UserError."""
    try:
        data = reading.content(path, _MOST)
    except reading.AbsentError:
        if (found := shipped_study(path)) is not None:
            return load(found, scale)
        raise StudyError("no such file", file=str(path), hint="see: hugewise list studies") from None
    except reading.UnreadableError as error:
        raise StudyError(error.reason, file=str(path), hint="check its name and permissions") from None
    try:
        text = reading.text(data)
    except reading.UnreadableError as error:
        raise StudyError(error.reason, file=str(path), hint="save it as UTF-8 text") from None
    study = parse(text, str(path))
    return study if scale is None else at_scale(study, scale)


def parse(text: str, file: str) -> Study:
    """Return the study in `text`; `file` is named in errors. Raises StudyError."""
    try:
        data = reading.toml(text)
    except reading.UnreadableError as error:
        cure = "a study needs three levels at most; see https://toml.io for the syntax"
        raise StudyError(error.reason, file=file, hint=cure) from None
    return read(data, file)


def read(data: Mapping[str, Any], file: str) -> Study:
    """Return the study in tables already parsed. Raises StudyError."""
    place = Place(file)
    version = data.get("format", 1)
    if isinstance(version, int) and not isinstance(version, bool) and version != 1:
        raise place.at("format").wrong("is not a format that this hugewise reads", version, hint="write format = 1")
    study = keys.read_table(Study, data, place, file=file)
    rules.check(study, place)
    rules.check_guests(study, place)
    return study


def command_study(
    policies: Sequence[str],
    argv: Sequence[str],
    *,
    baseline: str | None = None,
    name: str = "command",
    metric: str | None = None,
    method: str | None = None,
    margin: str | float | None = None,
    confidence: str | float | None = None,
    blocks: int | None = None,
    time: str | float | None = None,
    timeout: str | float | None = None,
    proof: str | None = None,
    pool: str | int | None = None,
    share: str | float | None = None,
    values: Sequence[str] = (),
    prepare: Sequence[str] = (),
    stdin: str = "",
    user: str | None = None,
    cpus: Sequence[int] | None = None,
) -> Study:
    """`hugewise run --policy a,b -- CMD`: the study that compares `policies` on one command.

    By the sequential method it ends when all is decided, else when the time is over: 10 minutes where neither `time`
    nor `blocks` is given. Other options that are left out have the defaults of a study file; all are written as there.
    `values` are metrics in the command's output, `prepare` is a command that is run before each attempt, `stdin` a file
    that is the command's standard input. Raises StudyError.
    """
    method = _SEQUENTIAL if method is None else method
    blocks_open = method == _SEQUENTIAL and blocks is None
    if blocks_open:
        blocks, time = MOST_BLOCKS, _TIME if time is None else time
    workload = {
        "name": "command",
        "metric": metric,
        "timeout": timeout,
        "user": user,
        "cpus": cpus,
        "parameters": _given(
            {
                "argv": list(argv),
                "proof": proof,
                "pool_bytes": pool,
                "prepare": list(prepare) or None,
                "values": list(values) or None,
                "stdin": stdin or None,
            }
        ),
        "delivery": _given({"share": share}),
    }
    data = {
        "format": 1,
        "name": name,
        "question": f"Which pages for: {shlex.join(argv)}"[:200].translate(dict.fromkeys((*range(32), 127), " ")),
        "policies": list(policies),
        "baseline": baseline,
        "method": method,
        "margin": margin,
        "confidence": confidence,
        "budget": _given({"blocks": blocks, "time": time}),
        "design": {"kind": "auto"},
        "workload": [_given(workload)],
    }
    return msgspec.structs.replace(read(_given(data), "command line"), blocks_open=blocks_open)


def with_budget(study: Study, blocks: int | None, time: str | float | None) -> Study:
    """Return the study with another budget, as `--blocks` and `--time` give it. Raises StudyError."""
    before = msgspec.structs.asdict(study.budget)
    budget = keys.read_table(Budget, _given(before | _given({"blocks": blocks, "time": time})), Place("command line"))
    return msgspec.structs.replace(study, budget=budget)


def part(study: Study, workloads: Sequence[str] = (), policies: Sequence[str] = ()) -> Study:
    """Return the study with some workloads (labels or cells) and policies, and the baseline. Raises UserError."""
    where = study.file or study.name
    labels, names = [use.called for use in study.workload], [use.name for use in study.policies]
    cells = {name: labels[n] for name in workloads if name not in labels and (n := cell_of(labels, name)) is not None}
    for what, chosen, known in (("workload", workloads, [*labels, *cells]), ("policy", policies, names)):
        for name in chosen:
            if name not in known:
                raise UserError(f"{where} has no {what} {name!r}", hint=keys.near(name, known))
    of = study.whole or (study if workloads or policies else None)
    chosen_whole = set(workloads)
    workloads = [*workloads, *cells.values()]
    kept = [name for name in names if not policies or name in policies or name == study.compared_with]
    uses = []
    for use in study.workload:
        own = use.policies if use.policies is None else tuple(name for name in use.policies if name in kept)
        judged = [name for name in (kept if own is None else own) if name not in study.unjudged]
        if (not workloads or use.called in workloads) and len(judged) > 1:
            uses.append(msgspec.structs.replace(use, policies=own))
    if not uses:
        raise UserError(
            f"{where}: nothing is left to compare", hint=f"name a policy beside the baseline {study.compared_with}"
        )
    left = {use.called for use in uses}
    return msgspec.structs.replace(
        study,
        workload=tuple(uses),
        cells=tuple(name for name, label in cells.items() if label in left and label not in chosen_whole)
        if workloads
        else study.cells,
        policies=tuple(use for use in study.policies if use.name in kept),
        unjudged=tuple(name for name in study.unjudged if name in kept),
        published_arms={name: arm for name, arm in study.published_arms.items() if name in kept},
        # Guests of a part have the image of the whole; nothing else asks for it.
        whole=None if study.guest is None else of,
    )


def at_scale(study: Study, scale: str) -> Study:
    """Return the study with the values of one of its scales; `small` is as it is written. Raises UserError."""
    if scale == study.scale:
        return study
    known = {*study.scales, *(name for use in study.workload for name in use.scales)}
    if study.scale != SMALL:
        raise UserError(f"{study.name} is at the scale {study.scale} already", hint="read its file again")
    if scale not in known:
        there = ", ".join([SMALL, *sorted(known)])
        raise UserError(f"{study.file or study.name} has no scale {scale!r}", hint=f"scales that it has: {there}")
    changed = study.scales.get(scale, StudyScale())
    return msgspec.structs.replace(
        study,
        scale=scale,
        budget=changed.budget or study.budget,
        guest=changed.guest or study.guest,
        design=changed.design or study.design,
        confidence=changed.confidence or study.confidence,
        workload=tuple(use.at(scale) for use in study.workload),
        whole=study.whole and at_scale(study.whole, scale),
    )


def _given(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
