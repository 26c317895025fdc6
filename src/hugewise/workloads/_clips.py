"""The clips that are transcoded: synthetic ones, or a folder of the user's (vbench). Pure, but for its listing."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

__all__ = ["Clip", "folder", "synthetic"]

_SUFFIXES = (".mkv", ".mp4", ".mov", ".y4m", ".avi", ".webm")
# As vbench names its clips: chicken_3840x2160_30.mkv.
_NAME = re.compile(r"(.+)_(\d+)x(\d+)_(\d+(?:\.\d+)?)")
_FOLDERS = {"upload": "crf0", "vod": "crf18"}


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    """One input: its size in pixels, frames a second, and where it comes from.

    graph    of ffmpeg's lavfi, for a synthetic one; None: the file at `path`
    frames   its length; None where it is a file
    """

    title: str
    width: int
    height: int
    rate: str
    graph: str | None = None
    frames: int | None = None
    path: str | None = None

    @property
    def pixels(self) -> int:
        """Of a frame."""
        return self.width * self.height

    @property
    def file(self) -> str:
        """What the input is called among an attempt's data."""
        return f"{self.title}_{self.width}x{self.height}_{self.rate}.mkv" if self.path is None else Path(self.path).name


# At length 1: from a test card, which is easy, to noise, which is hard. All of them are functions of the frame's number
# and of the seeds named here.
_CELLS = "ratio=0.1:mold=10:random_seed=1:life_color=#00ff00:death_color=#c83232"
_CARD = "testsrc2=size=854x480:rate=30"
_ZOOM = "mandelbrot=size=1280x720:rate=25"
_LIFE = f"life=size=960x540:rate=60:{_CELLS},scale=1920:1080:flags=neighbor"
_NOISE = "testsrc2=size=3840x2160:rate=50,noise=alls=5:allf=t:all_seed=7"
_SYNTHETIC = (
    Clip(title="card", width=854, height=480, rate="30", frames=60, graph=_CARD),
    Clip(title="zoom", width=1280, height=720, rate="25", frames=30, graph=_ZOOM),
    Clip(title="cells", width=1920, height=1080, rate="60", frames=12, graph=_LIFE),
    Clip(title="noise", width=3840, height=2160, rate="50", frames=4, graph=_NOISE),
)


def synthetic(length: float) -> tuple[Clip, ...]:
    """480p to 2160p, 25 to 60 frames a second, easy to hard; their frames times `length`."""
    return tuple(
        msgspec.structs.replace(each, frames=max(1, round((each.frames or 0) * length))) for each in _SYNTHETIC
    )


def folder(path: str, profile: str) -> tuple[Clip, ...]:
    """The clips in `path`, or in its `crf0` (profile upload) or `crf18` (vod) as vbench has them, by name.

    Raises ValueError: no such folder, no clips in it, or a clip whose name does not say its size.
    """
    top = Path(path).expanduser()
    inner = top / _FOLDERS[profile]
    place = inner if inner.is_dir() else top
    if not place.is_dir():
        raise ValueError(f"{path}: there is no such folder")
    found = []
    for file in sorted(place.iterdir()):
        if file.suffix in _SUFFIXES:
            match = _NAME.fullmatch(file.stem)
            if match is None:
                raise ValueError(f"{file}: its name does not say its size, as in chicken_3840x2160_30.mkv")
            title, width, height, rate = match.groups()
            found.append(Clip(title=title, width=int(width), height=int(height), rate=rate, path=str(file.resolve())))
    if not found:
        raise ValueError(f"{place}: there are no clips in it ({', '.join(_SUFFIXES)})")
    return tuple(found)
