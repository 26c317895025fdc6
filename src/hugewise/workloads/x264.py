"""x264: transcoding with ffmpeg and libx264, one single-threaded instance pinned to each CPU.

As in the study of mTHP on Arm servers (LPC 2024): every instance transcodes all clips, synthetic ones in place
of vbench's; inputs, outputs and the program lie in tmpfs; *upload* takes lossless clips to CRF 18 in one pass,
*vod* takes CRF 18 clips to a constant bitrate in two. What comes out is the same, byte for byte, in all arms: raw H.264
with ffmpeg's bitexact flags. Instances are started at once by `xargs -L 1` from a file of commands, without a shell.

Source: xargs(1), findutils: arguments are separated by blanks; a backslash takes the next character as it is.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence

import msgspec

from hugewise.machine import programs
from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Act, Data, Outputs, Places, Procedure, Reading, Step, Write, counted
from hugewise.model.workload import Launch, Parameter
from hugewise.quantity import format_size
from hugewise.reading import figure, whole
from hugewise.workloads._micro import whole_pages
from hugewise.workloads._outputs import only
from hugewise.workloads._staged import TimedAsAWhole, Values, float_value

_SPECIAL = re.compile(r"([\s\"'\\])")


def argument_lines(commands: Iterable[Sequence[str]]) -> str:
    """Return the file's text. Raises ValueError for an argument that no line can hold."""
    written = []
    for command in commands:
        for word in command:
            if "\n" in word or not word:
                raise ValueError(f"{word!r} cannot be an argument in a file for xargs")
        written.append(" ".join(_SPECIAL.sub(r"\\\1", word) for word in command))
    return "".join(f"{line}\n" for line in written)


def sequential_command(path: str) -> tuple[str, ...]:
    """Return the command that runs the commands in the file `path` in sequence, and fails when one fails."""
    return ("xargs", "-a", path, "-L", "1", "env")


def pinned_command(path: str, count: int) -> tuple[str, ...]:
    """Return the command that runs `count` lines at once, each a CPU and the command pinned to it."""
    return ("xargs", "-a", path, "-P", str(count), "-L", "1", "taskset", "-c")


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    """Input: pixels, frames a second, length in frames, and its source, a graph of ffmpeg's lavfi."""

    title: str
    width: int
    height: int
    rate: str
    graph: str
    frames: int

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def file(self) -> str:
        return f"{self.title}_{self.width}x{self.height}_{self.rate}.mkv"


# Sources at length 1: from a test card, which is easy, to noise, which is hard. All of them are functions of the
# frame's number and of the seeds named here.
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


def synthetic_clips(length: float) -> tuple[Clip, ...]:
    """480p to 2160p, 25 to 60 frames a second, easy to hard; their frames times `length`."""
    return tuple(msgspec.structs.replace(clip, frames=max(1, round(clip.frames * length))) for clip in _SYNTHETIC)


_PRESET = "medium"
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


class X264(TimedAsAWhole):
    """A transcode on every CPU; the policy is about the encoders' memory, which malloc takes as it goes."""

    name = "x264"
    description = "transcoding to H.264 with ffmpeg and libx264, one pinned single-threaded instance on each CPU"
    programs = (("ffmpeg", "ffmpeg"), ("xargs", "findutils"), ("taskset", "util-linux"))
    choices = (("profile", ("upload", "vod")),)
    positive = ("length",)
    parameters = (
        Parameter("profile", "text", "upload", "upload (lossless to CRF 18) or vod (CRF 18 to a bitrate, two passes)"),
        Parameter("length", "number", 1.0, "length of the clips: 1 is some seconds of work in all"),
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
        """Return why values are impossible, or each process would take a huge page for a small heap, or None."""
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        size = treatment.target.size
        if treatment.target.kind == "hugetlb" and size > 32 << 20:
            return f"malloc takes a whole page of {format_size(size)} for each process's heap, and none for its frames"
        return None

    def stand_ins(self, values: Values) -> tuple[str, ...]:
        own = values.get("clips")  # of a run of before
        return () if own else ("synthetic clips in place of vbench's",)

    def memory(self, treatment: Treatment, values: Values) -> int:
        return _encoders(values) + 2 * _data_bytes(_chosen(values))

    def pooled(self, treatment: Treatment, values: Values) -> int:
        return whole_pages(_encoders(values) + (programs.cpus() + 1) * _SMALL_PROCESSES, treatment.target.size)

    def data(self, values: Values) -> Data:
        clips, profile = _chosen(values), str(values["profile"])
        ffmpeg = programs.which("ffmpeg") or "ffmpeg"

        def recipe(places: Places) -> Iterable[Act]:
            yield Step(name="folders", argv=("mkdir", "bin", "clips"), cwd=places.data)
            yield Step(name="program", argv=("cp", "--", ffmpeg, "bin/ffmpeg"), cwd=places.data)
            for index, clip in enumerate(clips):
                yield from _making(ffmpeg, places, clip, index, profile)
            commands = _transcodes("bin/ffmpeg", clips, profile, inputs="clips", prefix="reference", logs="pass")
            yield Write("reference.args", argument_lines(commands))
            compared = _comparisons("bin/ffmpeg", clips, inputs="clips", outputs="reference", stats="reference")
            yield Write("compare.args", argument_lines(compared))
            for name in ("reference", "compare"):
                argv = sequential_command(f"{name}.args")
                yield Step(name=name, argv=argv, cwd=places.data, timeout=86400.0)
            rest = ("pass-{:03d}-0.log", "pass-{:03d}-0.log.mbtree", "reference-{:03d}.progress")
            left = [name.format(index) for index in range(len(clips)) for name in rest]
            yield Step(name="tidy", argv=("rm", "-f", *left), cwd=places.data)

        exact = [(clip.file, clip.graph, clip.frames, "") for clip in clips]  # "": data of before keep their name
        key: dict[str, str | int | float | bool] = {
            "profile": profile,
            "preset": _PRESET,
            "clips": hashlib.sha256(repr(exact).encode()).hexdigest(),
            "ffmpeg": programs.stamp(ffmpeg),
            "libx264": ", ".join(map(programs.stamp, programs.matching("/usr/lib/*/libx264.so.*"))),
            "made": 1,
        }
        return Data(name=f"x264-{profile}", key=key, recipe=recipe, bytes=_data_bytes(clips))

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:
        clips, profile = _chosen(values), str(values["profile"])
        program, inputs = f"{places.data}/bin/ffmpeg", f"{places.data}/clips"
        written, instances = [], []
        for place, cpu in enumerate(places.sut):
            name = f"instance-{place:03d}"
            own = _transcodes(program, clips, profile, inputs=inputs, prefix=f"out-{place:03d}", logs=name)
            written.append(Write(name, argument_lines(own)))
            instances.append((str(cpu), *sequential_command(f"{places.data}/{name}")))
        compared = _comparisons(program, clips, inputs=inputs, outputs="out-000", stats="psnr")
        references = [
            f"{places.data}/reference-{index:03d}.{kind}" for index in range(len(clips)) for kind in ("h264", "psnr")
        ]
        return Procedure(
            before=(
                *written,
                Write("instances", argument_lines(instances)),
                Write("compare", argument_lines(compared)),
                Step(name="references", argv=("cp", "-t", places.run, "--", *references)),
            ),
            timed=Launch(
                argv=pinned_command(f"{places.data}/instances", len(places.sut)),
                proof="twin",
                environment=treatment.environment,
                cwd=places.run,
            ),
            after=(
                Step(name="psnr", argv=sequential_command(f"{places.data}/compare"), cwd=places.run, timeout=86400.0),
            ),
        )

    def read(self, outputs: Outputs, values: Values) -> Reading:
        clips = _chosen(values)
        elapsed = counted(outputs.parts)
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
        frames = sum(_frames(file) for file in outputs.files(re.compile(r"out-\d{3}-\d{3}\.progress")))
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
    return synthetic_clips(float_value(values, "length"))


def _encoders(values: Values) -> int:
    largest = 0
    for clip in _chosen(values):
        frames = min(clip.frames, _KEPT_FRAMES)
        of_pixels = clip.pixels * (_PER_PIXEL + _PER_PIXEL_AND_FRAME * frames)
        largest = max(largest, _OF_EACH + _PER_FRAME * frames + round(of_pixels))
    return programs.cpus() * largest


def _data_bytes(clips: Sequence[Clip]) -> int:
    # At most 1.5 bytes for each pixel.
    return sum(3 * clip.pixels * clip.frames // 2 for clip in clips) + (1 << 20)


def _making(ffmpeg: str, places: Places, clip: Clip, index: int, profile: str) -> Iterable[Act]:
    # For vod the lossless clip is then encoded at CRF 18, like vbench's own.
    target = f"clips/{clip.file}"
    lossless = target if profile == "upload" else "clips/lossless.mkv"
    drawn = ("-f", "lavfi", "-i", clip.graph, "-frames:v", str(clip.frames), "-pix_fmt", "yuv420p")
    encoder = ("-c:v", "libx264", "-threads", "1", *_BITEXACT)
    argv = (ffmpeg, *_QUIET, *drawn, *encoder, "-preset", "ultrafast", "-qp", "0", lossless)
    yield Step(name=f"clip-{index}", argv=argv, cwd=places.data, timeout=86400.0)
    if profile == "vod":
        encode = (ffmpeg, *_QUIET, "-i", lossless, *encoder, "-preset", _PRESET, "-crf", _CRF, target)
        yield Step(name=f"input-{index}", argv=encode, cwd=places.data, timeout=86400.0)
        yield Step(name=f"remove-{index}", argv=("rm", lossless), cwd=places.data)


def _transcodes(
    program: str, clips: Sequence[Clip], profile: str, *, inputs: str, prefix: str, logs: str
) -> list[tuple[str, ...]]:
    commands: list[tuple[str, ...]] = []
    for index, clip in enumerate(clips):
        start = (program, *_QUIET, "-threads", "1", "-i", f"{inputs}/{clip.file}", "-an", "-sn")
        encoder = ("-c:v", "libx264", "-preset", _PRESET, "-threads", "1", *_BITEXACT)
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
    # Raw H.264 has no times, so that frames are paired by their number.
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
    values = _PSNR.findall(stats)
    frames = [math.inf if value == "inf" else figure(value, "the PSNR of a frame", low=0) for value in values]
    if not frames:
        raise ValueError(f"no frame was compared: {stats[:100]!r}")
    error = sum(0.0 if math.isinf(value) else 10 ** (-value / 10) for value in frames) / len(frames)
    return -10 * math.log10(error) if error else math.inf


def _frames(progress: bytes) -> int:
    counts = _PASSED.findall(progress.decode(errors="replace"))
    if not counts:
        raise ValueError("ffmpeg's progress names no frame")
    return whole(counts[-1], "the frames")


WORKLOAD = X264()
