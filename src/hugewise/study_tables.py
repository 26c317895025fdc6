"""The tables of a study file below its top: policies, budget, workloads, and the rules of the attempts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from hugewise import study_keys as keys
from hugewise.study_keys import Key, Place
from hugewise.trial import Judged

__all__ = [
    "POLICY",
    "Between",
    "Budget",
    "CalibrationRule",
    "DeliveryRule",
    "Layout",
    "ParameterInput",
    "PolicyUse",
    "Retries",
    "Sessions",
    "Validity",
    "WorkloadUse",
]

Scalar = str | int | float | bool
ParameterInput = Scalar | tuple[Scalar | tuple[Scalar, ...], ...]

_KNOB = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_PLACE = re.compile(r"/[^\0]*")
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


POLICY = keys.Kind("a policy's name, or a table", _policy_use)
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

    parameters: Annotated[
        Mapping[str, ParameterInput],
        Key(
            keys.Kind("table: a parameter's name = a value", _PARAMETERS.read),
            "Parameters of the workload that only this arm has, instead of the workload's (a server that must be told"
            " to use huge pages; a planted effect).",
            "parameters = { iterations = 20400000 }",
        ),
    ] = {}
    thp_disable: Annotated[
        bool,
        Key(
            keys.flag(),
            "Base pages for this arm alone by prctl(PR_SET_THP_DISABLE), whatever the knobs say: so that it can run"
            " beside an arm of the same knobs that has huge pages.",
            "thp_disable = true",
        ),
    ] = False

    judged: Annotated[
        Judged,
        Key(
            keys.choice("setting", "backing"),
            "What the arm's verdict speaks of: the promised pages, whose delivery is then required, or the setting as"
            " it is turned (as most published figures do), with the delivered share beside the verdict.",
            'judged = "setting"',
        ),
    ] = "backing"

    @property
    def registered(self) -> str:
        """The name of the registered policy behind it."""
        return self.source or self.name

    @property
    def changed(self) -> bool:
        """Whether it does something else than the registered policy. How it is judged changes nothing of that."""
        return bool(self.set or self.environment or self.parameters or self.thp_disable)


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much to measure."""

    blocks: Annotated[
        int,
        Key(
            keys.integer(2, 100_000), "Complete blocks planned for each cell: the n of every comparison.", "blocks = 12"
        ),
    ] = 12
    width: Annotated[
        float | None,
        Key(
            keys.share(above=0),
            "Method sequential: after a better or worse, go on until the interval of the ratio is at most this wide.",
            'width = "3%"',
            default="stop at the verdict",
        ),
    ] = None
    time: Annotated[
        float | None,
        Key(
            keys.duration(1.0),
            "Time after which no new block is begun; what is then open stays undecided.",
            'time = "4m"',
            default="no limit",
        ),
    ] = None


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the arms of a block are laid out in time and over CPUs. See docs/concepts/designs.md."""

    kind: Annotated[
        Literal["sequential", "duet", "crossover"],
        Key(
            keys.choice("sequential", "duet", "crossover"),
            "One after the other; all at once, each on a CPU of its own; or in turns of milliseconds within one process"
            " that has all layouts resident. Each answers another question.",
            'kind = "duet"',
        ),
    ] = "sequential"
    slots: Annotated[
        tuple[int, ...],
        Key(
            keys.listing(keys.integer(0, 65_535)),
            "The CPUs that attempts are pinned to. Which one an attempt gets is drawn by the coin; no arm has one of"
            " its own. A duet needs one for each arm.",
            "slots = [0, 1]",
            default="not pinned",
        ),
    ] = ()
    turns: Annotated[
        int,
        Key(keys.integer(2, 10_000), "Turns of each layout in an attempt of a crossover.", "turns = 100"),
    ] = 100


class CalibrationRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `hugewise calibrate` must have shown on this host before a verdict is given."""

    required: Annotated[
        bool,
        Key(
            keys.flag(),
            "Withhold every verdict unless a calibration of the same workloads passed on this host under this kernel. A"
            " duet always needs one.",
            "required = true",
        ),
    ] = False
    agreement: Annotated[
        float,
        Key(
            keys.share(above=0, below=0.5),
            "How far the effects of a duet and of sequential pairs may lie apart, with 95% confidence, for a duet to be"
            " believed.",
            'agreement = "5%"',
        ),
    ] = 0.05
    age: Annotated[
        float, Key(keys.duration(1.0), "Oldest calibration that counts.", 'age = "168h"', default='"168h"')
    ] = 7 * 86_400.0


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
    published: Annotated[
        str | None,
        Key(
            keys.text(),
            "The entry of the study's published source that its cells stand beside: a table, benchmark or finding.",
            'published = "memcached"',
            default="none",
        ),
    ] = None
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
    client_cpus: Annotated[
        tuple[int, ...] | None,
        Key(
            keys.listing(keys.integer(0, 65_535)),
            "CPUs of the load generator, for workloads with a server; keep them apart from `cpus`.",
            "client_cpus = [2, 3]",
            default="the CPUs that are not in `cpus`; half of the machine's where neither is named",
        ),
    ] = None
    storage: Annotated[
        str,
        Key(
            keys.text(pattern=_PLACE, words="an absolute path", cure="name a folder on tmpfs or a disk"),
            "The folder, on tmpfs or a disk, in which an attempt has its copy of the workload's data.",
            'storage = "/var/tmp"',
        ),
    ] = "/dev/shm"  # noqa: S108  (the machine's tmpfs; a private folder is made in it)
    memory: Annotated[
        int | None,
        Key(
            keys.size(1 << 20),
            "Most memory of the servers, the page cache that they fill and pages of a pool included (root only).",
            'memory = "3g"',
            default="none",
        ),
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
        Key(
            keys.number(0),
            "Flag when the load of other processes (one-minute average, per CPU) lies above it.",
            "load_per_cpu = 1.5",
        ),
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
        Key(
            keys.flag(),
            "Flag when other programs took or gave back hugetlb pages, or transparent huge pages of more than 5% of the"
            " machine's memory, during an attempt.",
            "other_huge_page_users = true",
        ),
    ] = True
    clock_source: Annotated[
        bool, Key(keys.flag(), "Flag when the kernel's clock source changed or is a slow one.", "clock_source = true")
    ] = True


class Sessions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Statistical sessions: what shares one allocation and one boot. Their means carry the widest claim."""

    pairs: Annotated[
        int | None,
        Key(
            keys.integer(1),
            "Complete blocks of each cell in a session; then everything is put back and a new session begins: pools are"
            " reserved and memory is touched anew. `hugewise plan` says how many are worth it. After a reboot,"
            " `hugewise resume` begins a session too.",
            "pairs = 25",
            default="one session",
        ),
    ] = None


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
