"""Clips: the synthetic ones span the published range; those of a folder say their size by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.workloads import x264


def test_synthetic_clips_span_480p_to_2160p_and_25_to_60_frames_a_second() -> None:
    clips = x264.synthetic_clips(1)
    assert {clip.height for clip in clips} == {480, 720, 1080, 2160}
    assert {clip.rate for clip in clips} >= {"25", "60"}
    assert [clip.frames for clip in x264.synthetic_clips(2)] == [2 * (clip.frames or 0) for clip in clips]
    assert all(clip.frames == 1 for clip in x264.synthetic_clips(0.001))
    assert clips[0].file == "card_854x480_30.mkv"


def test_a_folder_is_read_as_vbench_lays_it_out(tmp_path: Path) -> None:
    for inner in ("crf0", "crf18"):
        (tmp_path / inner).mkdir()
        (tmp_path / inner / "chicken_3840x2160_30.mkv").write_bytes(b"x")
    (tmp_path / "crf0" / "cat_854x480_29.97.mkv").write_bytes(b"x")
    (tmp_path / "crf0" / "README").write_text("no clip")
    assert [clip.title for clip in x264.clips_in_folder(str(tmp_path), "upload")] == ["cat", "chicken"]
    (clip,) = x264.clips_in_folder(str(tmp_path), "vod")
    assert (clip.pixels, clip.rate, clip.frames, clip.file) == (8_294_400, "30", None, "chicken_3840x2160_30.mkv")
    assert clip.path == str(tmp_path / "crf18" / "chicken_3840x2160_30.mkv")
    assert len(x264.clips_in_folder(str(tmp_path / "crf0"), "vod")) == 2


def test_what_cannot_be_read_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        x264.clips_in_folder(str(tmp_path / "none"), "upload")
    with pytest.raises(ValueError, match="no clips in it"):
        x264.clips_in_folder(str(tmp_path), "upload")
    (tmp_path / "clip.mkv").write_bytes(b"x")
    with pytest.raises(ValueError, match="does not say its size"):
        x264.clips_in_folder(str(tmp_path), "upload")
