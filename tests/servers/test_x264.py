"""x264 with a real ffmpeg through whole runs: delivered, not delivered, and the same output under every policy."""

from pathlib import Path
from typing import Any

import pytest

from hugewise.model.trial import Attempt
from hugewise.workloads.x264 import X264
from tests.build import known
from tests.requirements import need_program
from tests.servers.trying import accepted, quick, short_pool

pytestmark = [pytest.mark.whole, pytest.mark.soak]

# A frame or a few of each clip.
LENGTH = 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all runs here: clips are made once for each profile."""
    need_program("ffmpeg", "ffmpeg")
    return tmp_path_factory.mktemp("x264")


def run(folder: Path, *policies: str, **parameters: Any) -> dict[str, Attempt]:
    return quick(folder, "x264", policies, {"length": LENGTH, **parameters})


def test_the_encoders_pages_are_proven_at_their_fullest(folder: Path) -> None:
    found = run(folder, "base", "mthp-64k", "hugetlb-2m")
    accepted(found)
    for arm, kind in (("base", "anon:4096"), ("mthp-64k", "anon:65536"), ("hugetlb-2m", "hugetlb:2097152")):
        delivery = found[arm].delivery
        assert (delivery.delivered, delivery.proof) == (True, "twin"), (arm, delivery)
        assert max(delivery.coverage, key=lambda each: delivery.coverage[each]) == kind
        assert sum(delivery.coverage.values()) > 200 << 20  # most of it is given back before an encoder leaves
    assert len({each.facts["outputs_sha256"] for each in found.values()}) == 1
    assert len({each.metrics["psnr_db"] for each in found.values()}) == 1
    for each in found.values():
        assert each.facts["clips"] == 4
        assert known(each.metrics["frames_per_s"]) > known(each.metrics["files_per_s"]) > 0


def test_two_passes_make_the_same_output_too(folder: Path) -> None:
    found = run(folder, "base", "mthp-64k", profile="vod")
    accepted(found)
    # Clips as short as these have about the share that counts as delivered (69 to 75%), so that it cannot be asserted.
    coverage = found["mthp-64k"].delivery.coverage
    assert max(coverage, key=lambda each: coverage[each]) == "anon:65536", coverage
    assert len({each.facts["outputs_sha256"] for each in found.values()}) == 1


def test_a_short_pool_is_not_delivered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """malloc takes base pages without a word. The pool is sized with room to spare, so that it is cut to a quarter."""
    short_pool(monkeypatch, X264, 0.25)
    delivery = run(folder, "base", "hugetlb-2m")["hugetlb-2m"].delivery
    assert delivery.delivered is False
    assert known(delivery.share) < 0.7
