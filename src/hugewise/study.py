"""A study: a question about page sizes as a TOML file, typed. Nothing is known here of any machine.

    load(path)                  from a file
    parse(text, file)           from its text
    read(data, file)            from tables already parsed
    command_study(policies, argv)  `hugewise run --policy a,b -- CMD`, without a file

Every mistake raises StudyError with file, key, value and cure. Names of policies, workloads, parameters and metrics
are looked up in `hugewise.plan`, which sees the machine.
"""

from __future__ import annotations

import hashlib
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hugewise import study_guest, study_guest_rules, study_rules
from hugewise import study_keys as keys
from hugewise.covariates import COVARIATES
from hugewise.errors import StudyError, UserError
from hugewise.published import keys as published_keys
from hugewise.study_guest import GuestUse, KernelUse
from hugewise.study_keys import Key, Place
from hugewise.study_tables import (
    POLICY,
    Between,
    Budget,
    CalibrationRule,
    Layout,
    PolicyUse,
    Retries,
    Sessions,
    StudyScale,
    Validity,
)
from hugewise.study_workload import SMALL, DeliveryRule, ParameterInput, WorkloadUse, scales

__all__ = [
    "Between",
    "Budget",
    "CalibrationRule",
    "DeliveryRule",
    "GuestUse",
    "KernelUse",
    "Layout",
    "ParameterInput",
    "PolicyUse",
    "Retries",
    "Sessions",
    "Study",
    "StudyScale",
    "Validity",
    "WorkloadUse",
    "at_scale",
    "command_study",
    "load",
    "parse",
    "part",
    "read",
    "stored_digest",
    "with_budget",
]


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The question, what is compared, and how the comparison is judged.

    Durations are in seconds, sizes in bytes, shares of one. `scale` is the one that was chosen (see `at_scale`), `file`
    where the study came from; neither is a key.
    """

    format: Annotated[int, Key(keys.integer(1), "The version of this format: 1.", "format = 1")]
    name: Annotated[str, Key(keys.name(), "The study's name, and its folder's below `results/`.", 'name = "demo"')]
    question: Annotated[
        str, Key(keys.text(), "The question in words, for the report.", 'question = "Which page size?"')
    ] = ""
    published: Annotated[
        str | None,
        Key(
            published_keys.SOURCE,
            "The published experiment that the study restates (`hugewise list published`): the report puts its figures"
            " beside the measured ones. Each workload then names its entry.",
            'published = "lpc-2024-mthp-arm64"',
            default="none",
        ),
    ] = None
    published_arms: Annotated[
        Mapping[str, str],
        Key(
            published_keys.ARMS,
            "Which published arm a policy stands for, in the source's own words; several may stand for one. The"
            " baseline must stand for the arm that the source compares with.",
            'published_arms = { base = "4K (4KPS)", thp = "2M (4KPS)" }',
        ),
    ] = {}
    policies: Annotated[
        tuple[PolicyUse, ...],
        Key(
            keys.Kind("list of policy names and tables", keys.listing(POLICY, least=2).read, PolicyUse),
            "The policies to compare (`hugewise list policies`).",
            'policies = ["base", "thp", { name = "thp-defer", from = "thp", set = { "defrag" = "defer" } }]',
        ),
    ]
    baseline: Annotated[
        str | None,
        Key(keys.name(), "The policy that all others are compared with.", 'baseline = "base"', default="the first"),
    ] = None
    margin: Annotated[
        float,
        Key(
            keys.share(above=0, below=0.5),
            "Equivalence margin: two arms are equivalent when the whole interval of arm/baseline lies between"
            " 1/(1 + margin) and 1 + margin.",
            'margin = "0.5%"',
        ),
    ] = 0.005
    confidence: Annotated[
        float,
        Key(
            keys.share(above=0.5, below=1),
            "Confidence of the verdicts, over all comparisons of the study together.",
            "confidence = 0.99",
        ),
    ] = 0.99
    method: Annotated[
        str,
        Key(
            keys.choice("fixed-n", "sequential"),
            "The statistical method: a planned number of blocks, or an exact test after every block.",
            'method = "sequential"',
        ),
    ] = "fixed-n"
    end_points: Annotated[
        tuple[str, ...],
        Key(
            keys.listing(keys.choice("mean", "slow", "p99"), least=0),
            "End points that are judged beside the typical ratio, with an equal share of the error rate each (method"
            " sequential): the ratio of arithmetic means, the rate of slow runs, the 99th percentile over all runs.",
            'end_points = ["mean"]',
            default="none",
        ),
    ] = ()
    covariate: Annotated[
        str | None,
        Key(
            keys.choice(*COVARIATES),
            "What was measured of the host before each attempt and is taken out of the differences between arms"
            " (method sequential): the time of a short fixed loop, or the load average. Arms that run at once"
            " share it, so that it takes out nothing there.",
            'covariate = "canary"',
            default="none",
        ),
    ] = None
    window: Annotated[
        float,
        Key(
            keys.duration(1.0),
            "Longest interruption of a block; one broken off for longer is replaced by a new block.",
            'window = "5m"',
        ),
    ] = 300.0
    budget: Annotated[Budget, Key(keys.table(Budget), "How much to measure.", "[budget]")] = Budget()
    scales: Annotated[
        Mapping[str, StudyScale],
        Key(
            scales(keys.table(StudyScale)),
            "What a scale changes beside its workloads: `budget` and `guest`, in place of the whole tables `[budget]`"
            " and `[guest]`.",
            'scales = { published = { budget = { blocks = 30, time = "48h" } } }',
            default="none",
        ),
    ] = {}
    design: Annotated[
        Layout, Key(keys.table(Layout), "How the arms of a block are laid out in time and over CPUs.", "[design]")
    ] = Layout()
    calibration: Annotated[
        CalibrationRule,
        Key(keys.table(CalibrationRule), "What must be calibrated before a verdict is given.", "[calibration]"),
    ] = CalibrationRule()
    workload: Annotated[
        tuple[WorkloadUse, ...],
        Key(keys.listing(keys.table(WorkloadUse)), "What is run; one table for each workload.", "[[workload]]"),
    ]
    between: Annotated[Between, Key(keys.table(Between), "Carry-over control between attempts.", "[between]")] = (
        Between()
    )
    validity: Annotated[Validity, Key(keys.table(Validity), "Rules that flag disturbed attempts.", "[validity]")] = (
        Validity()
    )
    sessions: Annotated[Sessions, Key(keys.table(Sessions), "Statistical sessions.", "[sessions]")] = Sessions()
    attempt: Annotated[Retries, Key(keys.table(Retries), "The single attempt.", "[attempt]")] = Retries()
    guest: Annotated[
        GuestUse | None,
        Key(
            keys.table(GuestUse),
            "Every arm runs in a guest of QEMU, which is this.",
            "[guest]",
            default="none: on the host",
        ),
    ] = None
    kernel: Annotated[
        tuple[KernelUse, ...],
        Key(
            keys.listing(keys.table(KernelUse)),
            "The kernels that guests boot; the first is that of arms that name none.",
            "[[kernel]]",
            default="none",
        ),
    ] = ()
    scale: str = SMALL
    file: str = ""

    @property
    def compared_with(self) -> str:
        """The baseline's name."""
        return self.baseline or self.policies[0].name

    @property
    def environment_pad(self) -> int:
        """The most bytes that are added to an attempt's environment: none in guests that count, which differ in
        QEMU's seed alone (it draws where the stack lies).
        """
        return 0 if self.guest is not None and self.guest.counting else self.attempt.environment_pad

    @property
    def digest(self) -> str:
        """SHA-256 of what the study says, in hex: comments, spelling of values and the file's place do not count."""
        return stored_digest(msgspec.json.encode(self))


def stored_digest(text: bytes) -> str:
    """The digest of a study that was stored as JSON, whatever keys later versions have added to studies since.

    Keys of guests that say nothing do not count. Raises msgspec.DecodeError.
    """
    said = study_guest.without_unsaid(msgspec.json.decode(text, type=dict[str, Any]) | {"file": ""})
    return hashlib.sha256(msgspec.json.encode(said, order="sorted")).hexdigest()


def load(path: Path, scale: str | None = None) -> Study:
    """The study in the file at `path`, at the scale of that name where one is given. Raises StudyError, UserError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StudyError("no such file", file=str(path), hint="see: hugewise list studies") from None
    except OSError as error:
        raise StudyError(error.strerror or "cannot be read", file=str(path), hint="check its permissions") from None
    except UnicodeDecodeError as error:
        raise StudyError(f"is not UTF-8 (byte {error.start})", file=str(path), hint="save it as UTF-8 text") from None
    study = parse(text, str(path))
    return study if scale is None else at_scale(study, scale)


def parse(text: str, file: str) -> Study:
    """The study in `text`; `file` is named in errors. Raises StudyError."""
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise StudyError("is nested too deeply", file=file, hint="a study needs three levels at most") from None
    except ValueError as error:  # TOMLDecodeError, and integers of thousands of digits
        raise StudyError(f"is not TOML: {error}", file=file, hint="see https://toml.io for the syntax") from None
    return read(data, file)


def read(data: Mapping[str, Any], file: str) -> Study:
    """The study in tables already parsed. Raises StudyError."""
    place = Place(file)
    version = data.get("format", 1)
    if isinstance(version, int) and not isinstance(version, bool) and version != 1:
        raise place.at("format").wrong("is not a format that this hugewise reads", version, hint="write format = 1")
    study = keys.read_table(Study, data, place, file=file)
    study_rules.check(study, place)
    study_guest_rules.check(study, place)
    published_keys.check(study, place)
    return study


def command_study(
    policies: Sequence[str],
    argv: Sequence[str],
    *,
    baseline: str | None = None,
    name: str = "command",
    metric: str | None = None,
    margin: str | float | None = None,
    confidence: str | float | None = None,
    blocks: int | None = None,
    time: str | float | None = None,
    timeout: str | float | None = None,
    proof: str | None = None,
    pool: str | int | None = None,
    share: str | float | None = None,
    values: Sequence[str] = (),
    user: str | None = None,
    cpus: Sequence[int] | None = None,
) -> Study:
    """`hugewise run --policy a,b -- CMD`: the study that compares `policies` on one command.

    Options left out have the defaults of a study file and are written as there; `values` are metrics in the command's
    output. Raises StudyError.
    """
    workload = {
        "name": "command",
        "metric": metric,
        "timeout": timeout,
        "user": user,
        "cpus": cpus,
        "parameters": _given({"argv": list(argv), "proof": proof, "pool_bytes": pool, "values": list(values) or None}),
        "delivery": _given({"share": share}),
    }
    data = {
        "format": 1,
        "name": name,
        "question": f"Which pages for: {shlex.join(argv)}"[:200].translate(dict.fromkeys((*range(32), 127), " ")),
        "policies": list(policies),
        "baseline": baseline,
        "margin": margin,
        "confidence": confidence,
        "budget": _given({"blocks": blocks, "time": time}),
        "workload": [_given(workload)],
    }
    return read(_given(data), "command line")


def with_budget(study: Study, blocks: int | None, time: str | float | None) -> Study:
    """The study with another budget, as `--blocks` and `--time` give it. Raises StudyError."""
    before = {"blocks": study.budget.blocks, "time": study.budget.time, "width": study.budget.width}
    budget = keys.read_table(Budget, _given(before | _given({"blocks": blocks, "time": time})), Place("command line"))
    return msgspec.structs.replace(study, budget=budget)


def part(study: Study, workloads: Sequence[str] = (), policies: Sequence[str] = ()) -> Study:
    """The study with some of its workloads (by label) and policies only; empty: all of them. Raises UserError.

    The baseline stays. A workload that would have nothing left to compare goes too.
    """
    where = study.file or study.name
    labels, names = [use.called for use in study.workload], [use.name for use in study.policies]
    for what, chosen, known in (("workload", workloads, labels), ("policy", policies, names)):
        for name in chosen:
            if name not in known:
                raise UserError(f"{where} has no {what} {name!r}", hint=keys.near(name, known))
    kept = [name for name in names if not policies or name in policies or name == study.compared_with]
    uses = []
    for use in study.workload:
        own = use.policies if use.policies is None else tuple(name for name in use.policies if name in kept)
        if (not workloads or use.called in workloads) and len(kept if own is None else own) > 1:
            uses.append(msgspec.structs.replace(use, policies=own))
    if not uses:
        raise UserError(
            f"{where}: nothing is left to compare", hint=f"name a policy beside the baseline {study.compared_with}"
        )
    return msgspec.structs.replace(
        study,
        workload=tuple(uses),
        policies=tuple(use for use in study.policies if use.name in kept),
        published_arms={name: arm for name, arm in study.published_arms.items() if name in kept},
    )


def at_scale(study: Study, scale: str) -> Study:
    """The study with the values of one of its scales; `small` is as it is written. Raises UserError.

    What is read from it afterwards (parameters, budget, ...) holds for that scale, and `scale` names it.
    """
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
        workload=tuple(use.at(scale) for use in study.workload),
    )


def _given(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
