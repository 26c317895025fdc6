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
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hugewise import study_keys as keys
from hugewise.errors import StudyError
from hugewise.study_keys import Key, Place

__all__ = [
    "Between",
    "Budget",
    "DeliveryRule",
    "ParameterInput",
    "PolicyUse",
    "Retries",
    "Study",
    "Validity",
    "WorkloadUse",
    "command_study",
    "load",
    "parse",
    "read",
    "with_budget",
]

Scalar = str | int | float | bool
ParameterInput = Scalar | tuple[Scalar | tuple[Scalar, ...], ...]

_KNOB = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,31}\$?")


def _knob_value(value: object, place: Place) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(keys.integer().read(value, place))
    return str(keys.text().read(value, place))


def _scalar(value: object, place: Place) -> Scalar:
    if isinstance(value, str):
        return keys.plain(value, place)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(keys.integer(low=-(1 << 63)).read(value, place))
    if isinstance(value, float):
        return float(keys.number().read(value, place))
    raise place.wrong("must be text, a number, true or false, or a list of these", value, hint="simplify it")


def _parameter(value: object, place: Place) -> ParameterInput:
    if not isinstance(value, list | tuple):
        return _scalar(value, place)
    items: list[Scalar | tuple[Scalar, ...]] = []
    for index, item in enumerate(value, 1):
        here = place.item(index)
        if isinstance(item, list | tuple):
            items.append(tuple(_scalar(inner, here.item(n)) for n, inner in enumerate(item, 1)))
        else:
            items.append(_scalar(item, here))
    return tuple(items)


def _policy_use(value: object, place: Place) -> PolicyUse:
    if isinstance(value, str):
        return PolicyUse(name=keys.name().read(value, place))
    if not isinstance(value, Mapping):
        raise place.wrong(
            "must be a policy's name or a table", value, hint='write "thp" or { name = "mine", from = "thp" }'
        )
    use = keys.read_table(PolicyUse, value, place)
    if use.changed and use.source in (None, use.name):
        raise place.at("name").wrong(
            "a changed policy needs a name of its own",
            use.name,
            hint=f'write for example {{ name = "{use.name}-changed", from = "{use.name}", ... }}',
        )
    return use


_POLICY = keys.Kind("a policy's name, or a table", _policy_use)
_KNOBS = keys.mapping(
    _KNOB,
    "a file below /sys/kernel/mm/transparent_hugepage",
    keys.Kind("text or whole number", _knob_value),
)
_ENVIRONMENT = keys.mapping(_VARIABLE, "a variable's name", keys.text())
_PARAMETERS = keys.mapping(_PARAMETER, "a parameter's name", keys.Kind("a value, or a list of values", _parameter))


class PolicyUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy of the study: a registered one by its name, or a table that changes one."""

    name: Annotated[str, Key(keys.name(), "What the arm is called in every result.", 'name = "thp-defer"')]
    source: Annotated[
        str | None,
        Key(keys.name(), "The registered policy that is changed.", 'from = "thp"', default="the name itself"),
    ] = msgspec.field(default=None, name="from")
    set: Annotated[
        Mapping[str, str],
        Key(_KNOBS, "Knobs to turn on top of the policy's own (root only).", 'set = { "defrag" = "defer" }'),
    ] = {}
    environment: Annotated[
        Mapping[str, str],
        Key(
            _ENVIRONMENT,
            "Variables for the workload's environment, on top of the policy's own.",
            'environment = { GLIBC_TUNABLES = "glibc.malloc.hugetlb=1" }',
        ),
    ] = {}

    @property
    def registered(self) -> str:
        """The name of the registered policy behind it."""
        return self.source or self.name

    @property
    def changed(self) -> bool:
        """Whether it differs from the registered policy."""
        return bool(self.set or self.environment)


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much to measure."""

    blocks: Annotated[
        int,
        Key(
            keys.integer(2, 100_000), "Complete blocks planned for each cell: the n of every comparison.", "blocks = 12"
        ),
    ] = 12
    time: Annotated[
        float | None,
        Key(
            keys.duration(1.0),
            "Time after which no new block is begun; what is then open stays undecided.",
            'time = "4m"',
            default="no limit",
        ),
    ] = None


class DeliveryRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the pages that a policy promises count as delivered."""

    share: Annotated[
        float | None,
        Key(
            keys.share(),
            "Least share of the named memory at the promised page size. 0 judges the setting alone (intention to"
            " treat): coverage is then reported and not demanded.",
            "share = 0.95",
            default="the workload's own",
        ),
    ] = None
    base_above: Annotated[
        float,
        Key(
            keys.share(),
            "Largest share above the base page size under a policy that promises base pages.",
            'base_above = "1%"',
        ),
    ] = 0.01


class WorkloadUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload with its parameters. Each combination of the listed values is a cell."""

    name: Annotated[str, Key(keys.name(), "A registered workload (`hugewise list workloads`).", 'name = "chase"')]
    label: Annotated[
        str | None,
        Key(
            keys.name(),
            "What its cells are called; needed where one workload stands twice in a study.",
            'label = "chase-slow"',
            default="the name",
        ),
    ] = None
    policies: Annotated[
        tuple[str, ...] | None,
        Key(
            keys.listing(keys.name(), least=2),
            "The policies to compare on it, the baseline among them.",
            'policies = ["base", "thp"]',
            default="all of the study",
        ),
    ] = None
    metric: Annotated[
        str | None,
        Key(
            keys.name(),
            "The end point: the metric that is judged. One of the workload's own or of every attempt's.",
            'metric = "ns_per_load"',
            default="the workload's first",
        ),
    ] = None
    parameters: Annotated[
        Mapping[str, ParameterInput],
        Key(
            _PARAMETERS,
            "The workload's parameters. A list makes a factor of a parameter: one cell for each of its values, in all"
            " combinations. A command (`argv`) is a list itself: a list of lists makes a factor of it.",
            'parameters = { bytes = ["256k", "1g"], loads = 2000000 }',
        ),
    ] = {}
    timeout: Annotated[
        float,
        Key(
            keys.duration(0.001),
            "Longest an attempt may take. One that takes longer is killed and scores as the worst.",
            'timeout = "60s"',
        ),
    ] = 600.0
    user: Annotated[
        str | None,
        Key(
            keys.text(pattern=_ACCOUNT, words="an account name", cure="name an account of this machine"),
            "The account that it runs as (root only).",
            'user = "nobody"',
            default="chosen by hugewise",
        ),
    ] = None
    cpus: Annotated[
        tuple[int, ...] | None,
        Key(keys.listing(keys.integer(0, 65_535)), "CPUs that it is pinned to.", "cpus = [1]", default="not pinned"),
    ] = None
    delivery: Annotated[
        DeliveryRule,
        Key(
            keys.table(DeliveryRule),
            "When the promised pages count as delivered.",
            'delivery = { share = 0.95, base_above = "1%" }',
        ),
    ] = DeliveryRule()

    @property
    def called(self) -> str:
        """The label, or the name where there is none."""
        return self.label or self.name


class Between(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Carry-over control: what happens between two attempts, the same for all arms."""

    settle: Annotated[float, Key(keys.duration(), "Pause before each attempt.", 'settle = "20ms"')] = 0.02
    compact: Annotated[bool, Key(keys.flag(), "Compact memory before each attempt (root only).", "compact = true")] = (
        False
    )
    drop_caches: Annotated[
        bool, Key(keys.flag(), "Drop the page cache before each attempt (root only).", "drop_caches = true")
    ] = False


class Validity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules that flag an attempt as disturbed by its host. Flagged attempts count; the report names them."""

    load_per_cpu: Annotated[
        float,
        Key(keys.number(0), "Flag when the load average of one minute, per CPU, lies above it.", "load_per_cpu = 1.5"),
    ] = 1.5
    steal: Annotated[
        float,
        Key(
            keys.share(),
            "Flag when the hypervisor withheld more than this share of the machine's CPU time.",
            'steal = "5%"',
        ),
    ] = 0.05
    swap: Annotated[bool, Key(keys.flag(), "Flag when pages were swapped in or out.", "swap = true")] = True
    throttling: Annotated[
        bool, Key(keys.flag(), "Flag when a CPU was throttled for heat or power.", "throttling = true")
    ] = True
    other_huge_page_users: Annotated[
        bool,
        Key(keys.flag(), "Flag when programs other than the workload hold huge pages.", "other_huge_page_users = true"),
    ] = True
    clock_source: Annotated[
        bool, Key(keys.flag(), "Flag when the kernel's clock source changed or is a slow one.", "clock_source = true")
    ] = True


class Retries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attempt: its retries, and what is randomised in it."""

    retries: Annotated[
        int,
        Key(
            keys.integer(0, 100),
            "How often a trial is tried again after a fault of hugewise or the host that was decided before the timed"
            " region began. A failure of the workload is never retried.",
            "retries = 2",
        ),
    ] = 2
    environment_pad: Annotated[
        int,
        Key(
            keys.size(high=65_536),
            "Up to this many bytes, drawn anew for each attempt, are added to the environment: the layout of the stack"
            " is a known confounder.",
            'environment_pad = "4k"',
        ),
    ] = 4096


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The question, what is compared, and how the comparison is judged.

    Durations are in seconds, sizes in bytes, shares of one. `file` is where the study came from; it is no key.
    """

    format: Annotated[int, Key(keys.integer(1), "The version of this format: 1.", "format = 1")]
    name: Annotated[str, Key(keys.name(), "The study's name, and its folder's below `results/`.", 'name = "demo"')]
    question: Annotated[
        str, Key(keys.text(), "The question in words, for the report.", 'question = "Which page size?"')
    ] = ""
    policies: Annotated[
        tuple[PolicyUse, ...],
        Key(
            keys.Kind("list of policy names and tables", keys.listing(_POLICY, least=2).read, PolicyUse),
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
    method: Annotated[str, Key(keys.choice("fixed-n"), "The statistical method.", 'method = "fixed-n"')] = "fixed-n"
    window: Annotated[
        float,
        Key(
            keys.duration(1.0),
            "Longest interruption of a block; one broken off for longer is replaced by a new block.",
            'window = "5m"',
        ),
    ] = 300.0
    budget: Annotated[Budget, Key(keys.table(Budget), "How much to measure.", "[budget]")] = Budget()
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
    attempt: Annotated[Retries, Key(keys.table(Retries), "The single attempt.", "[attempt]")] = Retries()
    file: str = ""

    @property
    def compared_with(self) -> str:
        """The baseline's name."""
        return self.baseline or self.policies[0].name

    @property
    def digest(self) -> str:
        """SHA-256 of what the study says, in hex: comments, spelling of values and the file's place do not count."""
        said = msgspec.structs.replace(self, file="")
        return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()


def load(path: Path) -> Study:
    """The study in the file at `path`. Raises StudyError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StudyError("no such file", file=str(path), hint="see: hugewise list studies") from None
    except OSError as error:
        raise StudyError(error.strerror or "cannot be read", file=str(path), hint="check its permissions") from None
    except UnicodeDecodeError as error:
        raise StudyError(f"is not UTF-8 (byte {error.start})", file=str(path), hint="save it as UTF-8 text") from None
    return parse(text, str(path))


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
    _check_policies(study, place)
    _check_workloads(study, place)
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
    user: str | None = None,
    cpus: Sequence[int] | None = None,
) -> Study:
    """`hugewise run --policy a,b -- CMD`: the study that compares `policies` on one command.

    Options left out have the defaults of a study file; values are written as there. Raises StudyError.
    """
    workload = {
        "name": "command",
        "metric": metric,
        "timeout": timeout,
        "user": user,
        "cpus": cpus,
        "parameters": _given({"argv": list(argv), "proof": proof, "pool_bytes": pool}),
        "delivery": _given({"share": share}),
    }
    data = {
        "format": 1,
        "name": name,
        "question": f"Which pages for: {' '.join(argv)}"[:200].translate(dict.fromkeys((*range(32), 127), " ")),
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
    before = {"blocks": study.budget.blocks, "time": study.budget.time}
    budget = keys.read_table(Budget, _given(before | _given({"blocks": blocks, "time": time})), Place("command line"))
    return msgspec.structs.replace(study, budget=budget)


def _given(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _check_policies(study: Study, place: Place) -> None:
    names = [use.name for use in study.policies]
    for index, use in enumerate(study.policies, 1):
        if use.name in names[: index - 1]:
            raise place.at("policies").item(index).wrong("stands twice", use.name, hint="remove one of them")
    if study.compared_with not in names:
        raise place.at("baseline").wrong(
            "is not one of the study's policies", study.baseline, hint=keys.near(study.compared_with, names)
        )


def _check_workloads(study: Study, place: Place) -> None:
    names = [use.name for use in study.policies]
    called: set[str] = set()
    for index, use in enumerate(study.workload, 1):
        here = place.at("workload").item(index)
        if use.called in called:
            raise here.at("label" if use.label else "name").wrong(
                "two workloads are called so", use.called, hint=f'give this one a label = "{use.called}-2"'
            )
        called.add(use.called)
        if use.policies is None:
            continue
        for number, policy in enumerate(use.policies, 1):
            if policy not in names:
                raise (
                    here.at("policies")
                    .item(number)
                    .wrong("is not one of the study's policies", policy, hint=keys.near(policy, names))
                )
            if policy in use.policies[: number - 1]:
                raise here.at("policies").item(number).wrong("stands twice", policy, hint="remove one of them")
        if study.compared_with not in use.policies:
            raise here.at("policies").wrong(
                "lacks the baseline", list(use.policies), hint=f'add "{study.compared_with}"'
            )
