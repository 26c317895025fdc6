"""x264: transcoding with ffmpeg and libx264, one single-threaded instance pinned to each CPU.

As in the study of mTHP on Arm servers (LPC 2024): every instance transcodes all clips; inputs, outputs and the program
lie in tmpfs; *upload* takes lossless clips to CRF 18 in one pass, *vod* takes CRF 18 clips to a constant bitrate in
two. What comes out is the same, byte for byte, in all arms: raw H.264 with ffmpeg's bitexact flags.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hugewise.machine import programs
from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.scene import Act, Data, Outputs, Places, Reading, Scene, Step, Write
from hugewise.model.workload import Launch, Parameter
from hugewise.quantity import format_size
from hugewise.reading import figure, whole
from hugewise.workloads import _arguments, _clips
from hugewise.workloads._clips import Clip
from hugewise.workloads._micro import whole_pages
from hugewise.workloads._outputs import only
from hugewise.workloads._parameters import Values, number
from hugewise.workloads._staged import StagedWorkload

__all__ = ["WORKLOAD"]

_CRF = "18"
# The published target, 16,588,800 b/s for 3840x2160, is 2 bits a second for each pixel of a frame.
_BITS_PER_PIXEL = 2
_TOLERANCE_DB = 0.01
_BITEXACT = ("-fflags", "+bitexact", "-flags:v", "+bitexact")
_QUIET = ("-v", "error", "-nostdin", "-y")

# Memory of an instance under hugetlb pages, where each large block has pages of its own: measured as used and reserved
# pages of the pool with preset medium and clips of 4 to 90 frames, 13% of this at 480p, 65 to 88% from 720p to 2160p.
# The encoder keeps about 60 frames at most.
_KEPT_FRAMES = 60
_OF_EACH = 64 << 20
_PER_FRAME = 3 << 20
_PER_PIXEL, _PER_PIXEL_AND_FRAME = 45, 4.2
_SMALL_PROCESSES = 4 << 20  # xargs and taskset, of which malloc gives each a page

_PASSED = re.compile(r"^frame=(\d+)$", re.MULTILINE)
_PSNR = re.compile(r" psnr_avg:(\S+)")


class X264(StagedWorkload):
    """A transcode on every CPU; the policy is about the encoders' memory, which malloc takes as it goes."""

    name = "x264"
    description = "transcoding to H.264 with ffmpeg and libx264, one pinned single-threaded instance on each CPU"
    programs = (("ffmpeg", "ffmpeg"), ("xargs", "findutils"), ("taskset", "util-linux"))
    choices = (("profile", ("upload", "vod")),)
    positive = ("length",)
    parameters = (
        Parameter("profile", "text", "upload", "upload (lossless to CRF 18) or vod (CRF 18 to a bitrate, two passes)"),
        Parameter("clips", "text", "", "folder of clips, such as vbench's (default: synthetic clips)"),
        Parameter("length", "number", 1.0, "length of the synthetic clips: 1 is some seconds of work in all"),
        Parameter("preset", "text", "medium", "libx264's preset"),
        Parameter("copy_binary", "flag", True, "run a copy of ffmpeg that lies beside the clips, as published"),
    )
    metrics = (
        Metric("files_per_s", "files/s", "higher", "clips transcoded by all instances, over the total time"),
        Metric("frames_per_s", "frames/s", "higher", "frames encoded by all instances, over the total time"),
        Metric(
            "psnr_db", "dB", "neutral", "PSNR of the outputs against their inputs, mean over the clips", emulated=True
        ),
    )
    # Measured at 2160p, 1080p, 720p and 480p: 86, 83, 81 and 15% of an encoder's memory has pages of 2 MiB under
    # `thp`, 76% of all four together, and 90% from the pool. malloc maps blocks from 128 KiB on by themselves, and a
    # frame of 480p, with most of what is kept of 720p, is smaller than a huge page, whoever is asked for one.
    delivered_share = 0.7

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        """Values that cannot be; hugetlb pages of which every process would take a whole one for a small heap."""
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        if values["clips"]:
            try:
                _chosen(values)
            except ValueError as error:
                return str(error)
        size = treatment.target.size
        if treatment.target.kind == "hugetlb" and size > 32 << 20:
            return f"malloc takes a whole page of {format_size(size)} for each process's heap, and none for its frames"
        return None

    def stand_ins(self, values: Values) -> tuple[str, ...]:
        """The clips, where none are named."""
        return () if values["clips"] else ("synthetic clips in place of vbench's",)

    def memory(self, treatment: Treatment, values: Values) -> int:
        """The encoders, and the clips with what comes out in tmpfs."""
        return _encoders(values) + 2 * _data_bytes(_chosen(values))

    def pooled(self, treatment: Treatment, values: Values) -> int:
        """All encoders at their largest clip, with the small processes that start them."""
        return whole_pages(_encoders(values) + (_instances() + 1) * _SMALL_PROCESSES, treatment.target.size)

    def data(self, values: Values) -> Data:
        """The clips, the program, and the reference: what one instance makes of the clips, with its PSNR."""
        clips, profile = _chosen(values), str(values["profile"])
        ffmpeg = programs.which("ffmpeg") or "ffmpeg"
        preset = str(values["preset"])

        def recipe(places: Places) -> Iterable[Act]:
            yield Step(name="folders", argv=("mkdir", "bin", "clips"), cwd=places.data)
            yield Step(name="program", argv=("cp", "--", ffmpeg, "bin/ffmpeg"), cwd=places.data)
            for index, clip in enumerate(clips):
                yield from _making(ffmpeg, places, clip, index, profile)
            commands = _transcodes(
                "bin/ffmpeg", clips, profile, preset, inputs="clips", prefix="reference", logs="pass"
            )
            yield Write("reference.args", _arguments.lines(commands))
            compared = _comparisons("bin/ffmpeg", clips, inputs="clips", outputs="reference", stats="reference")
            yield Write("compare.args", _arguments.lines(compared))
            for name in ("reference", "compare"):
                argv = _arguments.in_turn(f"{name}.args")
                yield Step(name=name, argv=argv, cwd=places.data, timeout=86400.0)
            rest = ("pass-{:03d}-0.log", "pass-{:03d}-0.log.mbtree", "reference-{:03d}.progress")
            left = [name.format(index) for index in range(len(clips)) for name in rest]
            yield Step(name="tidy", argv=("rm", "-f", *left), cwd=places.data)

        exact = [(clip.file, clip.graph, clip.frames, _stamp(clip)) for clip in clips]
        key: dict[str, str | int | float | bool] = {
            "profile": profile,
            "preset": preset,
            "clips": hashlib.sha256(repr(exact).encode()).hexdigest(),
            "ffmpeg": programs.stamp(ffmpeg),
            "libx264": ", ".join(map(programs.stamp, programs.matching("/usr/lib/*/libx264.so.*"))),
            "made": 1,
        }
        return Data(name=f"x264-{profile}", key=key, recipe=recipe, bytes=_data_bytes(clips))

    def scene(self, treatment: Treatment, values: Values, places: Places) -> Scene:
        """An instance for each CPU, all started at once; each transcodes all clips in turn."""
        clips, profile, preset = _chosen(values), str(values["profile"]), str(values["preset"])
        copied = values["copy_binary"] is True
        program = f"{places.data}/bin/ffmpeg" if copied else (programs.which("ffmpeg") or "ffmpeg")
        inputs = f"{places.data}/clips"
        written, instances = [], []
        for place, cpu in enumerate(places.sut):
            name = f"instance-{place:03d}"
            own = _transcodes(program, clips, profile, preset, inputs=inputs, prefix=f"out-{place:03d}", logs=name)
            written.append(Write(name, _arguments.lines(own)))
            instances.append((str(cpu), *_arguments.in_turn(f"{places.data}/{name}")))
        compared = _comparisons(program, clips, inputs=inputs, outputs="out-000", stats="psnr")
        references = [
            f"{places.data}/reference-{index:03d}.{kind}" for index in range(len(clips)) for kind in ("h264", "psnr")
        ]
        return Scene(
            before=(
                *written,
                Write("instances", _arguments.lines(instances)),
                Write("compare", _arguments.lines(compared)),
                Step(name="references", argv=("cp", "-t", places.run, "--", *references)),
            ),
            timed=Launch(
                argv=_arguments.one_per_cpu(f"{places.data}/instances", len(places.sut)),
                proof="twin",
                environment=treatment.environment,
                cwd=places.run,
            ),
            after=(
                Step(name="psnr", argv=_arguments.in_turn(f"{places.data}/compare"), cwd=places.run, timeout=86400.0),
            ),
        )

    def read(self, outputs: Outputs, values: Values) -> Reading:
        """Rates over the whole time; every output held against the reference."""
        clips = _chosen(values)
        elapsed = outputs.end - outputs.begin
        files, problems, psnr = 0, [], []
        whole = hashlib.sha256()
        for index, clip in enumerate(clips):
            made = [_digest(each) for each in outputs.files(re.compile(rf"out-\d{{3}}-{index:03d}\.h264"))]
            expected = [_digest(each) for each in outputs.files(re.compile(rf"reference-{index:03d}\.h264"))]
            if not made or len(expected) != 1:
                raise ValueError(f"{clip.file}: {len(made)} outputs and {len(expected)} references were found")
            files += len(made)
            whole.update(expected[0].encode())
            if set(made) != set(expected):
                problems.append(f"{clip.file}: the output is not that of the reference (SHA-256 {made[0][:12]})")
            here, reference = (
                _psnr(only(outputs, f"{name}-{index:03d}.psnr").decode(errors="replace"))
                for name in ("psnr", "reference")
            )
            psnr.append(here)
            if abs(here - reference) > _TOLERANCE_DB:
                problems.append(f"{clip.file}: PSNR {here:.3f} dB, the reference's is {reference:.3f} dB")
        frames = sum(_frames(each) for each in outputs.files(re.compile(r"out-\d{3}-\d{3}\.progress")))
        return Reading(
            metrics={
                "files_per_s": files / elapsed,
                "frames_per_s": frames / elapsed,
                "psnr_db": sum(psnr) / len(psnr),
            },
            facts={
                "clips": len(clips),
                "instances": files // len(clips),
                "frames": frames,
                "outputs_sha256": whole.hexdigest(),
            },
            problem="; ".join(problems) or None,
        )


def _chosen(values: Values) -> tuple[Clip, ...]:
    """The clips of a cell. Raises ValueError as `_clips.folder` does."""
    given = str(values["clips"])
    return _clips.folder(given, str(values["profile"])) if given else _clips.synthetic(number(values, "length"))


def _instances() -> int:
    """Instances at most: one for each CPU that this process may use."""
    return programs.cpus()


def _encoders(values: Values) -> int:
    """Bytes of all instances, were each at its largest clip."""
    largest = 0
    for clip in _chosen(values):
        frames = min(clip.frames or _KEPT_FRAMES, _KEPT_FRAMES)
        of_pixels = clip.pixels * (_PER_PIXEL + _PER_PIXEL_AND_FRAME * frames)
        largest = max(largest, _OF_EACH + _PER_FRAME * frames + round(of_pixels))
    return _instances() * largest


def _data_bytes(clips: Sequence[Clip]) -> int:
    """About how large the inputs and references are: at most 1.5 bytes for each pixel of a synthetic clip."""
    given = sum(Path(clip.path).stat().st_size for clip in clips if clip.path is not None)
    return 2 * given + sum(3 * clip.pixels * (clip.frames or 0) // 2 for clip in clips) + (1 << 20)


def _stamp(clip: Clip) -> str:
    return "" if clip.path is None else programs.stamp(clip.path)


def _making(ffmpeg: str, places: Places, clip: Clip, index: int, profile: str) -> Iterable[Act]:
    """Copy a clip, or draw it: lossless for upload; for vod it is then encoded at CRF 18, like vbench's own."""
    target = f"clips/{clip.file}"
    if clip.path is not None:
        yield Step(name=f"clip-{index}", argv=("cp", "--", clip.path, target), cwd=places.data, timeout=86400.0)
        return
    lossless = target if profile == "upload" else "clips/lossless.mkv"
    drawn = ("-f", "lavfi", "-i", str(clip.graph), "-frames:v", str(clip.frames), "-pix_fmt", "yuv420p")
    encoder = ("-c:v", "libx264", "-threads", "1", *_BITEXACT)
    argv = (ffmpeg, *_QUIET, *drawn, *encoder, "-preset", "ultrafast", "-qp", "0", lossless)
    yield Step(name=f"clip-{index}", argv=argv, cwd=places.data, timeout=86400.0)
    if profile == "vod":
        encode = (ffmpeg, *_QUIET, "-i", lossless, *encoder, "-preset", "medium", "-crf", _CRF, target)
        yield Step(name=f"input-{index}", argv=encode, cwd=places.data, timeout=86400.0)
        yield Step(name=f"remove-{index}", argv=("rm", lossless), cwd=places.data)


def _transcodes(
    program: str, clips: Sequence[Clip], profile: str, preset: str, *, inputs: str, prefix: str, logs: str
) -> list[tuple[str, ...]]:
    """The commands of one instance, in their order; outputs are `PREFIX-CLIP.h264` where they are run."""
    commands: list[tuple[str, ...]] = []
    for index, clip in enumerate(clips):
        start = (program, *_QUIET, "-threads", "1", "-i", f"{inputs}/{clip.file}", "-an", "-sn")
        encoder = ("-c:v", "libx264", "-preset", preset, "-threads", "1", *_BITEXACT)
        output = f"{prefix}-{index:03d}"
        last = ("-progress", f"{output}.progress", "-f", "h264", f"{output}.h264")
        if profile == "upload":
            commands.append((*start, *encoder, "-crf", _CRF, *last))
            continue
        rate = ("-b:v", str(_BITS_PER_PIXEL * clip.pixels), "-passlogfile", f"{logs}-{index:03d}")
        commands.append((*start, *encoder, *rate, "-pass", "1", "-f", "null", "-"))
        commands.append((*start, *encoder, *rate, "-pass", "2", *last))
    return commands


def _comparisons(
    program: str, clips: Sequence[Clip], *, inputs: str, outputs: str, stats: str
) -> list[tuple[str, ...]]:
    """The commands that hold each output of an instance against its input, frame by frame: PSNR as `STATS-CLIP.psnr`.

    Raw H.264 has no times, so that frames are paired by their number.
    """
    commands: list[tuple[str, ...]] = []
    for index, clip in enumerate(clips):
        paired = "settb=1/25,setpts=N"
        graph = f"[0:v]{paired}[o];[1:v]{paired}[i];[o][i]psnr=stats_file={stats}-{index:03d}.psnr"
        of = ("-i", f"{outputs}-{index:03d}.h264", "-i", f"{inputs}/{clip.file}")
        commands.append((program, *_QUIET, *of, "-lavfi", graph, "-f", "null", "-"))
    return commands


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _psnr(stats: str) -> float:
    """PSNR in dB of the mean squared error over all frames, from the lines of ffmpeg's psnr filter."""
    told = _PSNR.findall(stats)
    frames = [math.inf if value == "inf" else figure(value, "the PSNR of a frame", low=0) for value in told]
    if not frames:
        raise ValueError(f"no frame was compared: {stats[:100]!r}")
    error = sum(0.0 if math.isinf(value) else 10 ** (-value / 10) for value in frames) / len(frames)
    return -10 * math.log10(error) if error else math.inf


def _frames(progress: bytes) -> int:
    found = _PASSED.findall(progress.decode(errors="replace"))
    if not found:
        raise ValueError("ffmpeg's progress names no frame")
    return whole(found[-1], "the frames")


WORKLOAD = X264()
