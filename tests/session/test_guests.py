"""What a session makes for guests and keeps of them, and that it does nothing where a study has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hugewise.errors import RunError
from hugewise.guests import boarding
from hugewise.model import guest_record as record
from hugewise.model.guest import Backing
from hugewise.model.guest_record import GuestsRecord
from hugewise.model.pages import PageSizes, PageTarget
from hugewise.model.policy import Deployment, Treatment
from hugewise.plan.arms import Arm, Machine
from hugewise.session import guests as guest_session
from hugewise.study.load import parse
from hugewise.study.study import Study
from tests.build.hosts import FakeHost
from tests.build.studies import IN_GUESTS, FakePolicy
from tests.build.workloads import BASE

STUDY = parse(IN_GUESTS, "s.toml")
SIZES = PageSizes(base=16384, pmd=32 << 20, mthp=(), shmem=(), hugetlb=())
KEPT = GuestsRecord(arch="arm64", accelerator="tcg", why="w", counting=False, baseline="16k", kernels=())


@dataclass
class Guests:
    """`provided.Provided`, as far as a session asks it."""

    found: Mapping[str, str] = field(default_factory=dict)
    counting: bool = False
    inside: list[bool] = field(default_factory=list)
    memory: int = 1 << 30
    emulated: bool = True

    def versions(self) -> Mapping[str, str]:
        return self.found

    def machine(self, kernel: str) -> Machine | str:
        assert kernel == "16k"
        return Machine(FakeHost(), SIZES, "system")

    def record(self, study: Study) -> GuestsRecord:
        assert study is STUDY
        return KEPT

    @contextmanager
    def within(self) -> Iterator[None]:
        self.inside.append(True)
        yield
        self.inside.append(False)


class Deployed(FakePolicy):
    """Says that it is deployed by turning /k, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__("base", PageTarget("base", 4096))
        self.asked: list[tuple[PageSizes, int]] = []

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        self.asked.append((sizes, pool_bytes))
        return Deployment(now=("echo never > /k",), boot=(), note="n")


def guests(versions: Mapping[str, str] | None = None, *, counting: bool = False) -> Any:
    return Guests(versions or {}, counting)


def test_an_arm_is_deployed_where_it_ran() -> None:
    policy, host = Deployed(), FakeHost()
    here = guest_session.deployment(Arm("base", policy, BASE, "backing", None, None), 5, None, host)
    assert here.now == ("echo never > /k",)
    there = guest_session.deployment(Arm("base", policy, BASE, "backing", "16k", Backing()), 0, guests(), host)
    assert policy.asked == [(PageSizes.discover(host), 5), (SIZES, 0)]
    assert there.now[0] == "# judged by what an emulated guest counts: no time was measured"
    assert there.now[1:3] == ("# in the guest, booted with the kernel 16k (base pages of 16k):", "echo never > /k")


def test_the_folder_of_a_run_keeps_what_its_guests_are(tmp_path: Path) -> None:
    guest_session.keep(tmp_path, STUDY, None)
    assert list(tmp_path.iterdir()) == []
    guest_session.keep(tmp_path, STUDY, guests())
    assert record.read(tmp_path) == KEPT


def test_programs_are_looked_for_in_guests_that_there_are() -> None:
    made = guests()
    with guest_session.looking_in(made):
        assert made.inside == [True]
    assert made.inside == [True, False]
    with guest_session.looking_in(None):
        pass


def test_what_guests_share_is_made_for_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def opening(*given: Any, seed: bytes, privileged: bool) -> str:
        asked.append((*given, seed, privileged))
        return "aboard"

    monkeypatch.setattr(boarding.Boarding, "open", opening)
    closing, made = ExitStack(), guests()

    def share(which: Any) -> Any:
        return guest_session.share(STUDY, which, None, closing, print, seed=b"run", privileged=True)

    assert share(None) is None
    assert asked == []
    assert share(made) == "aboard"
    assert asked == [(STUDY, made, None, closing, print, b"run", True)]


def test_one_run_has_one_accelerator(tmp_path: Path) -> None:
    kvm, tcg, other = ({"accelerator": text} for text in ("kvm: it boots", "tcg: no KVM", "tcg: as the study says"))
    guest_session.check(tmp_path, {}, None)
    guest_session.check(tmp_path, tcg, guests(other))  # why may change
    with pytest.raises(RunError, match="ran under tcg, and would run under kvm now"):
        guest_session.check(tmp_path, tcg, guests(kvm))


@pytest.mark.parametrize("name", ["initramfs 16k", "kernel 16k", "qemu"])
def test_a_count_is_of_one_agent_kernel_and_qemu(tmp_path: Path, name: str) -> None:
    before = {"accelerator": "tcg: w", "qemu": "7.2", "kernel 16k": "6.12", "initramfs 16k": "SHA-256 a"}
    counting = guests(before | {"accelerator": "tcg: another reason"}, counting=True)
    guest_session.check(tmp_path, before | {"python": "3.11"}, counting)
    for was, said in ((before | {name: "b"}, "it was b"), ({"accelerator": "tcg: w"}, "it was not kept")):
        guest_session.check(tmp_path, was, guests(before))  # of faults and memory it is only noted
        with pytest.raises(RunError, match=said) as caught:
            guest_session.check(tmp_path, was, counting)
        assert caught.value.hint
