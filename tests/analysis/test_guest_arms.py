"""What the guests of an arm were, from its attempts and the run's record."""

from msgspec.structs import replace

from hugewise.analysis.analysis import counted, guests
from hugewise.model.guest import GuestsRecord
from hugewise.model.metric import COMMON
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Deployment, Treatment
from hugewise.model.trial import DeliveryThreshold
from hugewise.store.records import ArmRecord, CellRecord
from tests.build import known
from tests.build.booted import recorded

ATTEMPTS = recorded().attempts


def cell(kernel: str | None = "debian") -> CellRecord:
    treatment = Treatment(policy="mthp-64k", mechanism="system", target=PageTarget("any", 4096))
    return CellRecord(
        id="fault",
        workload="fault",
        values={},
        metric=COMMON[0],
        baseline="64k",
        delivery=DeliveryThreshold(0.0, 1.0),
        arms=(ArmRecord("64k", treatment, 0, Deployment(note=""), "backing", kernel, None),),
    )


def test_arms_of_the_host_have_no_guests() -> None:
    assert guests([cell(None)], ATTEMPTS, None, {}) is None


def test_a_run_without_a_record_says_what_its_attempts_and_versions_say() -> None:
    found = known(guests([cell()], ATTEMPTS, None, {"accelerator": "tcg: this is: a virtual machine"}))
    assert (found.accelerator, found.why) == ("tcg", "this is: a virtual machine")
    assert (found.baseline, found.kernels, found.arch) == ("debian", (), None)
    (arm,) = found.arms
    assert (arm.attempts, arm.policy, arm.share, arm.accelerator) == (3, "mthp-64k", 1.0, "tcg")
    assert (arm.cpus, arm.memory, arm.image, arm.varied) == (1, 256 << 20, "", {})


def test_the_weakest_proof_counts_and_rejected_attempts_do_not() -> None:
    weak = replace(ATTEMPTS[1], arm="64k", guest={**ATTEMPTS[1].guest, "backing_share": 0.97, "backing_proof": "weak"})
    refused = replace(weak, state="rejected", guest={**weak.guest, "backing_share": 0.1})
    found = known(guests([cell()], [*ATTEMPTS, weak, refused], None, {}))
    assert (found.arms[0].share, found.arms[0].proof, found.arms[0].attempts) == (0.97, "weak", 4)


def test_an_arm_without_attempts_has_no_share() -> None:
    found = known(guests([cell()], [], None, {}))
    assert (found.arms[0].share, found.arms[0].attempts, found.arms[0].cpus) == (None, 0, None)


def test_facts_that_changed_between_attempts_are_named() -> None:
    told = [replace(one, guest={**one.guest, "initramfs_sha256": "a"}) for one in ATTEMPTS]
    other = replace(told[1], arm="64k", guest={**told[1].guest, "qemu": "10.0", "initramfs_sha256": "b"})
    found = known(guests([cell()], [*told, other], None, {}))
    assert found.arms[0].initramfs == "a or b"
    assert set(found.arms[0].varied) == {"qemu", "initramfs_sha256"}
    assert "10.0" in found.arms[0].varied["qemu"]


def test_instructions_are_said_to_come_from_where_they_come() -> None:
    kept = GuestsRecord(arch="x86-64", accelerator="tcg", why="", counting=True, baseline="debian", kernels=())
    metric = next(each for each in COMMON if each.name == "instructions")
    assert "counted by emulation" in counted(metric, kept).description
    assert counted(metric, replace(kept, counting=False)) is metric
    assert counted(metric, None) is metric
    assert counted(COMMON[0], kept) is COMMON[0]
