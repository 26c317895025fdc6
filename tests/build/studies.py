"""Small fakes of what a study meets: policies, workloads and a machine, and TOML written from Python values."""

import json
from collections.abc import Mapping
from typing import Any

from hugewise.model.metric import COMMON, Metric
from hugewise.model.pages import THP, PageSizes, PageTarget
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.model.trial import DeliveryThreshold
from hugewise.model.workload import Launch, Missing, Parameter, ParameterValue, RunsAs, Workload
from hugewise.plan.arms import Arm
from hugewise.plan.plan import Cell
from hugewise.study.load import read
from hugewise.study.study import Study
from tests.build.hosts import Files

# Arms that run in guests, at their shortest.
IN_GUESTS = """
format = 1
name = "s"
policies = ["base", "thp"]
[guest]
arch = "x86-64"
[[kernel]]
name = "k"
package = "linux-image-cloud-amd64"
[between]
settle = "0ms"
[[workload]]
name = "fault"
"""


def study_data(**keys: Any) -> dict[str, Any]:
    """A small study as its file has it, with these keys."""
    return {"format": 1, "name": "s", "policies": ["base", "thp"], "workload": [{"name": "chase"}], **keys}


def study_of(**keys: Any) -> Study:
    """The study with these keys, read from `s.toml`."""
    return read(study_data(**keys), "s.toml")


_ANY = PageTarget("any", 4096)
SIZES = PageSizes(4096, 2 << 20, (1 << 16, 1 << 17), (2 << 20, 1 << 30))


class KnobFiles(Files):
    """A machine of root's, with these files."""

    def __init__(self, files: Mapping[str, str] | None = None, *, root: bool = True) -> None:
        super().__init__({f"{THP}/defrag": "always defer [madvise] never", **(files or {})}, root=root, knobs=True)


class FakePolicy:
    """A policy that promises `target` and may be missing."""

    def __init__(self, name: str, target: PageTarget, reason: str | None = None) -> None:
        self.name, self.description, self.target, self.reason = name, f"{target}", target, reason

    def missing(self, host: object, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        return self.reason

    def treatment(self, host: object, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        return Treatment(
            policy=self.name,
            mechanism=mechanism,
            target=self.target,
            knobs={f"{THP}/enabled": "always"} if mechanism == "system" else {},
            map_hugetlb=self.target.size if self.target.kind == "hugetlb" else None,
            environment={"A": "policy"},
        )

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        return Deployment(note="")


class FakeWorkload:
    """A workload that refuses hugetlb pages where asked to."""

    description = "fake"
    account: RunsAs = "unprivileged"
    delivered_share = 0.95

    def __init__(
        self,
        name: str,
        parameters: tuple[Parameter, ...],
        *,
        hugetlb: bool = True,
        missing: tuple[Missing, ...] = (),
    ) -> None:
        self.name, self.parameters, self.hugetlb, self.lacks = name, parameters, hugetlb, missing
        self.metrics: tuple[Metric, ...] = (
            Metric("ns_per_load", "ns", "lower", "time"),
            Metric("rate", "1/s", "higher", "rate"),
        )

    def refuses(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> str | None:
        return None if self.hugetlb or treatment.map_hugetlb is None else "no hugetlb here"

    def missing(self, values: Mapping[str, ParameterValue]) -> tuple[Missing, ...]:
        return self.lacks

    def launch(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> Launch:
        return Launch(argv=("true",), proof="exit")

    def memory(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        size = values.get("bytes", 0)
        assert isinstance(size, int)
        return -(-size // treatment.target.size) * treatment.target.size

    def pool(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        return 0


def policies(**missing: str) -> dict[str, Policy]:
    """base, thp, mthp-64k, mthp-128k, hugetlb-2m, hugetlb-1g; `missing` gives reasons, with _ for -."""
    targets = {
        "base": PageTarget("base", 4096),
        "thp": PageTarget("thp", 2 << 20),
        "mthp-64k": PageTarget("mthp", 1 << 16),
        "mthp-128k": PageTarget("mthp", 1 << 17),
        "hugetlb-2m": PageTarget("hugetlb", 2 << 20),
        "hugetlb-1g": PageTarget("hugetlb", 1 << 30),
    }
    return {n: FakePolicy(n, target, missing.get(n.replace("-", "_"))) for n, target in targets.items()}


def workloads() -> dict[str, Workload]:
    """Fakes of the demo's workloads, and one with a parameter of every type."""
    every = (
        Parameter("bytes", "size", "1m", "size"),
        Parameter("calls", "integer", 7, "integer"),
        Parameter("rate", "number", 1.5, "number"),
        Parameter("wait", "duration", "20ms", "duration"),
        Parameter("touch_chance", "share", "25%", "share"),
        Parameter("words", "text", "exit", "text"),
        Parameter("random", "flag", False, "flag"),
        Parameter("pool_bytes", "size", 0, "size that may be 0"),
    )
    sized = (Parameter("bytes", "size", "1g", "size"), Parameter("loads", "integer", 2_000_000, "loads"))
    found = [
        FakeWorkload("chase", sized),
        FakeWorkload("fault", sized),
        FakeWorkload("mmap-perf", (Parameter("calls", "integer", 1_000_000, "calls"),), hugetlb=False),
        FakeWorkload("command", (Parameter("argv", "argv", None, "the command"),)),
        FakeWorkload("every", every),
        FakeWorkload(
            "absent",
            sized,
            missing=(
                Missing("redis-server is missing", "redis-server"),
                Missing("no compiler", "gcc libc6-dev"),
                Missing("the folder of SPEC CPU is not named"),
                Missing("make is missing", "make gcc"),
            ),
        ),
    ]
    return {workload.name: workload for workload in found}


def as_toml(data: Mapping[str, Any]) -> str:
    """TOML text of `data`: a line for each key, tables inline."""
    return "".join(f"{_quoted(key)} = {_inline(value)}\n" for key, value in data.items())


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _inline(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_quoted(k)} = {_inline(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _quoted(value)
    return repr(value)


def an_arm(name: str, target: PageTarget = _ANY, *, kernel: str | None = None, **treatment: Any) -> Arm:
    """An arm of a policy of that name."""
    told = {"policy": name, "mechanism": "system", "target": target, **treatment}
    return Arm(name, FakePolicy(name, target), Treatment(**told), kernel=kernel)


def cell_of(workload: Workload, *arms: Arm, **changes: Any) -> Cell:
    """A cell in which the first arm is the baseline, and any pages will do."""
    told: dict[str, Any] = {
        "id": workload.name,
        "workload": workload,
        "values": {},
        "metric": COMMON[0],
        "baseline": arms[0].name,
        "arms": arms,
        "timeout": 30.0,
        "delivery": DeliveryThreshold(0.0, 1.0),
        "cpus": None,
    }
    return Cell(**told | changes)
