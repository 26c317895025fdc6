"""x264: its clips, its commands, and what its outputs mean."""

import math
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from hugewise.model.procedure import Places, Step, Write
from hugewise.workloads import x264
from hugewise.workloads.x264 import WORKLOAD
from tests.build.workloads import HUGE, POOL, Said, given

VALUES = given(WORKLOAD)
PLACES = Places(data="/s/data", run="/s/run", ports=(), sut=(3, 5), client=(3, 5))
STATS = "n:1 mse_avg:0.53 psnr_avg:50.00 psnr_y:49.12\nn:2 mse_avg:0.53 psnr_avg:{} psnr_y:49.12 \n"


def written(scene_acts: object) -> dict[str, str]:
    assert isinstance(scene_acts, tuple)
    return {act.path: act.text for act in scene_acts if isinstance(act, Write)}


def test_every_cpu_has_an_instance_that_transcodes_all_clips() -> None:
    procedure = WORKLOAD.procedure(POOL, VALUES, PLACES)
    files = written(procedure.before)
    assert files["instances"] == (
        "3 xargs -a /s/data/instance-000 -L 1 env\n5 xargs -a /s/data/instance-001 -L 1 env\n"
    )
    assert procedure.timed.argv == ("xargs", "-a", "/s/data/instances", "-P", "2", "-L", "1", "taskset", "-c")
    assert (procedure.timed.cwd, procedure.timed.proof) == ("/s/run", "twin")
    assert procedure.timed.environment == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"}
    lines = files["instance-001"].splitlines()
    assert len(lines) == 4
    assert lines[0] == (
        "/s/data/bin/ffmpeg -v error -nostdin -y -threads 1 -i /s/data/clips/card_854x480_30.mkv -an -sn -c:v libx264"
        " -preset medium -threads 1 -fflags +bitexact -flags:v +bitexact -crf 18 -progress out-001-000.progress"
        " -f h264 out-001-000.h264"
    )


def test_vod_is_two_passes_to_two_bits_a_second_for_each_pixel() -> None:
    procedure = WORKLOAD.procedure(POOL, {**VALUES, "profile": "vod"}, PLACES)
    lines = written(procedure.before)["instance-000"].splitlines()
    assert len(lines) == 8
    assert " -b:v 16588800 -passlogfile instance-000-003 -pass 1 -f null -" in lines[6]  # the published target
    assert lines[7].endswith("-pass 2 -progress out-000-003.progress -f h264 out-000-003.h264")


def test_data_are_the_clips_and_a_reference_of_each() -> None:
    for profile, made in (("upload", 1), ("vod", 3)):
        data = WORKLOAD.data({**VALUES, "profile": profile})
        acts = list(data.recipe(Places(data="/d", run="/r", ports=(), sut=(0,), client=(0,))))
        steps = [act.name for act in acts if isinstance(act, Step)]
        assert steps[:2] == ["folders", "program"]
        assert steps[-3:] == ["reference", "compare", "tidy"]
        assert len(steps) == 5 + 4 * made
        assert all("/d" not in act.text for act in acts if isinstance(act, Write))  # the same bytes wherever made
    assert WORKLOAD.data(VALUES).key != WORKLOAD.data({**VALUES, "length": 2.0}).key


def outputs(changed: Mapping[str, bytes | None] = MappingProxyType({})) -> Said:
    files: dict[str, bytes] = {}
    for clip in range(4):
        for name in ("out-000", "out-001", "reference"):
            files[f"{name}-{clip:03d}.h264"] = b"stream %d" % clip
            files[f"{name}-{clip:03d}.progress"] = b"frame=2\nprogress=continue\nframe=5\nprogress=end\n"
        for name in ("psnr", "reference"):
            files[f"{name}-{clip:03d}.psnr"] = STATS.format("50.00").encode()
    kept = {name: text for name, text in {**files, **changed}.items() if text is not None}
    return Said({"timed": ""}, files=kept, seconds=2)


def test_rates_are_over_the_whole_time() -> None:
    reading = WORKLOAD.read(outputs(), VALUES)
    assert reading.metrics == pytest.approx({"files_per_s": 4, "frames_per_s": 20, "psnr_db": 50})
    assert (reading.problem, reading.facts["instances"], reading.facts["frames"]) == (None, 2, 40)


def test_an_output_that_is_not_the_reference_is_a_problem() -> None:
    wrong = WORKLOAD.read(outputs({"out-001-002.h264": b"other"}), VALUES)
    assert "cells_1920x1080_60.mkv: the output is not that of the reference" in (wrong.problem or "")
    worse = WORKLOAD.read(outputs({"psnr-000.psnr": STATS.format("49.90").encode()}), VALUES)
    assert "card_854x480_30.mkv: PSNR 49.950 dB, the reference's is 50.000 dB" in (worse.problem or "")


@pytest.mark.parametrize(
    "gone", [("out-000-001.h264", "out-001-001.h264"), ("reference-001.h264",), ("psnr-001.psnr",)]
)
def test_outputs_that_are_missing_are_an_error(gone: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="found|missing"):
        WORKLOAD.read(outputs(dict.fromkeys(gone)), VALUES)


def test_psnr_is_that_of_the_mean_error() -> None:
    assert x264._psnr(STATS.format("inf")) == pytest.approx(50 + 10 * math.log10(2))
    assert x264._psnr("n:1 psnr_avg:inf psnr_y:inf") == math.inf
    with pytest.raises(ValueError, match="no frame was compared"):
        x264._psnr("")


def test_the_pool_holds_all_instances_at_once() -> None:
    pool = WORKLOAD.pool(POOL, VALUES)
    assert pool % (2 << 20) == 0
    assert pool > 374 << 20  # what one instance was seen to take at 2160p
    assert WORKLOAD.pool(HUGE, VALUES) == 0


def test_synthetic_clips_span_480p_to_2160p_and_25_to_60_frames_a_second() -> None:
    clips = x264.synthetic_clips(1)
    assert {clip.height for clip in clips} == {480, 720, 1080, 2160}
    assert {clip.rate for clip in clips} >= {"25", "60"}
    assert [clip.frames for clip in x264.synthetic_clips(2)] == [2 * (clip.frames or 0) for clip in clips]
    assert all(clip.frames == 1 for clip in x264.synthetic_clips(0.001))
    assert clips[0].file == "card_854x480_30.mkv"
