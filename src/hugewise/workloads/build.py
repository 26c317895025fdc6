"""Build: `make -jN` of the kernel, of GDB, of Lua, or of any project with a makefile, from a source archive.

Every attempt has a fresh copy of the configured tree, untimed. What is built must be what a reference build gave: the
same files, and the same sections in every object file. So all that would get into them is fixed: SOURCE_DATE_EPOCH,
KBUILD_BUILD_*, and the path. With `reference = false` (in a guest) the digest of all objects must be that of the cell's
first attempt, and a small program is compiled before, so that the compiler's files are in the page cache.

Nearly all memory is cc1's, and 85% of it is the heap of gcc's own garbage collector, which it maps by itself:
transparent pages reach it, a pool does not (gcc/ggc-page.cc, alloc_anon). What malloc has comes from a pool by glibc's
tunable; but with it every shell and every `cat` takes a huge page too.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from hugewise.machine import programs
from hugewise.machine.loader import MAGIC, sections
from hugewise.model.metric import COMMON, Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Act, Data, Outputs, Places, Procedure, Reading, Step, Write
from hugewise.model.workload import Launch, Missing, Parameter
from hugewise.quantity import format_size
from hugewise.reading import believing
from hugewise.workloads import _staged
from hugewise.workloads._outputs import only
from hugewise.workloads._staged import TimedAsAWhole, Values, integer

_ARCHIVES = (b"!<arch>\n", b"!<thin>\n")


def digests(archive: bytes) -> dict[str, str]:
    """Return, by path in the tar file, digests of object files' sections and of libraries. Raises ValueError."""
    found: dict[str, str] = {}
    try:
        with believing("the archive"), tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as members:
            for member in members:
                stream = members.extractfile(member) if member.isfile() else None
                data = b"" if stream is None else stream.read()
                if data.startswith(MAGIC):
                    lines = [
                        (section.name, section.kind, hashlib.sha256(section.contents).hexdigest())
                        for section in sections(data)
                    ]
                    found[member.name] = hashlib.sha256(repr(lines).encode()).hexdigest()
                elif data.startswith(_ARCHIVES):
                    found[member.name] = hashlib.sha256(data).hexdigest()
    except tarfile.TarError as error:
        raise ValueError(f"not a tar file: {error}") from None
    return found


# Sources that no target below kernel/, mm/, lib/ and the like is made of. Kconfig files are kept: make looks at them.
_NOT_NEEDED = (
    "*/Documentation/*.*",
    *(f"*/{folder}/*.[chS]" for folder in ("drivers", "sound", "fs", "net", "samples")),
    "*/tools/testing/*",
    "*/tools/perf/*",
    "*.dts*",
)
_BY_THEMSELVES = ("block", "crypto", "init", "io_uring", "ipc", "kernel", "lib", "mm", "security")
_ARCHITECTURES = (
    *("alpha", "arc", "arm", "arm64", "csky", "hexagon", "ia64", "loongarch", "m68k", "microblaze", "mips", "nios2"),
    *("openrisc", "parisc", "powerpc", "riscv", "s390", "sh", "sparc", "xtensa"),
)
_KEPT = {
    "aarch64": ("arm64", "arm"),
    "ppc64le": ("powerpc",),
}  # the kernel's names where they differ, and its tools


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """Recipe to unpack, configure and build a source tree.

    target      what is made where the study does not say it
    artefact    what is compared then
    configure   the commands, from configuration and jobs
    options     make's variables, from the tree's folder and the configuration
    programs    that it needs beside those of every build, with their packages
    headers     likewise
    usual       where Debian puts the archive of its sources, and an image those that its guest was made with
    lacking     what to say where there is no archive, and the package that has one
    below       a target FOLDER/NAME is NAME of the makefile in that folder
    parts       targets that need a part of the tree alone: what of the archive is not unpacked for them
    """

    target: str
    artefact: str
    configure: Callable[[str, int], list[tuple[str, ...]]]
    options: Callable[[str, str], tuple[str, ...]]
    programs: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    usual: str | None = None
    lacking: Missing
    below: bool = False
    parts: Mapping[str, tuple[str, ...]] = {}


def _configure_linux(config: str, jobs: int) -> list[tuple[str, ...]]:
    return [("make", config or "tinyconfig"), ("make", f"-j{jobs}", "prepare", "scripts")]


def _configure_gdb(config: str, jobs: int) -> list[tuple[str, ...]]:
    # configures the top level alone: its parts are configured by make, which as published is timed
    del jobs
    options = config or "--disable-nls --disable-werror --disable-sim --without-python --without-guile"
    return [("./configure", "--quiet", *options.split())]


def _debug_options(tree: str, config: str) -> tuple[str, ...]:
    del config
    flags = f"-g -O2 -ffile-prefix-map={tree}=."
    return (f"CFLAGS={flags}", f"CXXFLAGS={flags}", "MAKEINFO=true")


def _own_flags(tree: str, config: str) -> tuple[str, ...]:
    # added to Lua's -O2
    del tree
    return (f"MYCFLAGS={config}",) if config else ()


def _from_debian(whose: str, package: str) -> Missing:
    return Missing(
        f'{whose} sources: cp "$(hugewise guest source {package})" /usr/src/ puts them where they are looked for; or'
        f" name an archive, source = '/path/to/{package}_VERSION.orig.tar.xz'"
    )


# GDB's programs and its other libraries, of which that of small functions needs none.
_NOT_OF_LIBIBERTY = tuple(
    f"*/{folder}"
    for folder in (
        *("bfd", "cpu", "gdb", "gdbserver", "gdbsupport", "gnulib", "libbacktrace", "libctf", "libdecnumber"),
        *("libsframe", "opcodes", "readline", "sim", "texinfo", "zlib"),
    )
)

_COMMON_PROGRAMS = {"make": "make", "gcc": "gcc", "tar": "tar", "xz": "xz-utils"}
# gcc links nothing without the C library's part; a kernel too has programs that help to build it.
_COMMON_HEADERS = {"stdio.h": "libc6-dev"}
# Headers of linux that configurations above the smallest one need.
PROJECTS = {
    "linux": Project(
        target="mm/",
        artefact="mm",
        configure=_configure_linux,
        options=lambda *_: (),
        programs={"flex": "flex", "bison": "bison", "bc": "bc"},
        headers={"libelf.h": "libelf-dev", "openssl/opensslv.h": "libssl-dev"},
        usual="/usr/src/linux-source-*.tar.*",
        lacking=Missing("the kernel's sources: /usr/src/linux-source-*.tar.* is not there", "linux-source"),
    ),
    "gdb": Project(
        target="all-gdb",
        artefact="gdb/gdb",
        configure=_configure_gdb,
        options=_debug_options,
        programs={"g++": "g++", "flex": "flex", "bison": "bison", "cmp": "diffutils"},
        headers={"gmp.h": "libgmp-dev", "mpfr.h": "libmpfr-dev"},
        usual="/usr/src/gdb_*.orig.tar.*",
        lacking=_from_debian("GDB's", "gdb"),
        parts={"all-libiberty": _NOT_OF_LIBIBERTY},
    ),
    "lua": Project(
        target="linux",  # 33 files, without readline
        artefact="src",
        configure=lambda *_: [],
        options=_own_flags,
        usual="/usr/src/lua5*.orig.tar.*",
        lacking=_from_debian("Lua's", "lua5.4"),
        below=True,
    ),
    "make": Project(
        target="all",
        artefact=".",
        configure=lambda *_: [],
        options=lambda *_: (),
        lacking=Missing("the sources: name the archive, source = '/path/to/archive.tar.xz'"),
    ),
}


def selected_project(values: Values) -> Project:
    """Return the project that the parameters name."""
    return PROJECTS[str(values["project"])]


def source_archive(values: Values) -> str | None:
    """Return the archive: as named, or the newest where Debian puts the project's sources; None where there is none."""
    if values["source"]:
        return str(values["source"])
    pattern = selected_project(values).usual
    return None if pattern is None else max(programs.matching(pattern), key=_version, default=None)


def _version(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", Path(path).name)]


def make_target(values: Values) -> str:
    """Return the make target."""
    return str(values["target"] or selected_project(values).target)


def artefact_path(values: Values) -> str:
    """Return the path that is compared: as given, else the target's folder, else the project's own program."""
    if values["artefact"]:
        return str(values["artefact"])
    made = make_target(values)
    if made.endswith("/"):
        return made.rstrip("/")
    if values["project"] == "gdb" and made != selected_project(values).target and made.startswith("all-"):
        return made.removeprefix("all-")
    return "vmlinux" if values["project"] == "linux" else selected_project(values).artefact


def excluded_patterns(values: Values) -> tuple[str, ...]:
    """Return patterns of files that are not unpacked: none, except for a target that needs few folders."""
    if make_target(values) in selected_project(values).parts:
        return selected_project(values).parts[make_target(values)]
    if values["project"] != "linux" or make_target(values).split("/")[0] not in _BY_THEMSELVES:
        return ()
    machine = programs.machine()
    kept = _KEPT.get(machine, (machine.rstrip("0123456789le"), machine))
    others = [f"*/arch/{name}/*.*" for name in _ARCHITECTURES if name not in kept]
    return (*_NOT_NEEDED, *others)


def missing_programs(values: Values) -> Iterator[Missing]:
    """Yield programs and headers that a build needs and that are not there."""
    yield from _staged.not_on_path({**_COMMON_PROGRAMS, **selected_project(values).programs}.items())
    headers = _COMMON_HEADERS
    if values["project"] != "linux" or (values["config"] or "tinyconfig") != "tinyconfig":
        headers = {**headers, **selected_project(values).headers}
    in_image = programs.place() is not None
    for header, package in headers.items():
        if in_image and programs.installed(package) is None:
            yield Missing(f"{header}: no such header in the image", package)
        if in_image:
            continue
        folders = [Path("/usr/include"), *Path("/usr/include").glob("*-linux-gnu*"), Path("/usr/local/include")]
        if not any((folder / header).exists() for folder in folders):
            yield Missing(f"{header}: no such header", package)


def make_command(values: Values, tree: str, jobs: int) -> tuple[str, ...]:
    """Return the command that makes the target in the tree, in that folder."""
    made, wanted = selected_project(values), make_target(values)
    folder, _, name = wanted.rpartition("/")
    where, goal = (("-C", folder), name) if made.below and folder else ((), wanted)
    return ("make", f"-j{jobs}", *where, goal, *made.options(tree, str(values["config"])))


_DAY = 86400.0
_LARGEST_FOR_EACH = 32 << 20
_FIXED = {
    "SOURCE_DATE_EPOCH": "1609459200",
    "KBUILD_BUILD_TIMESTAMP": "2021-01-01",
    "KBUILD_BUILD_USER": "hugewise",
    "KBUILD_BUILD_HOST": "hugewise",
    "KBUILD_BUILD_VERSION": "1",
    "LC_ALL": "C",
}

# make expands the words, and passes the result to a shell: neither may find anything special in them.
_PART = "[A-Za-z0-9_.,+@][A-Za-z0-9_.,+@-]*"
_GOAL = f"(?:{_PART}(?:/{_PART})*/?)?"
_FLAGS = "[A-Za-z0-9_.,:=+/@ -]*"

_ALL_FILES = ("find", ".", "-type", "f")
_ARTEFACT, _REFERENCE, _FILES = "artefact.tar", "reference.tar", "reference.files"


class Build(TimedAsAWhole):
    """The command is the system under test, with every CPU; a twin proves its processes' pages, or in turns a scan."""

    name = "build"
    description = (
        "make -jN of Linux, GDB, Lua or any project, from a source archive; the result is held against a reference"
    )
    choices = (("project", PROJECTS),)
    least = (("jobs", 0),)
    parameters = (
        Parameter("project", "text", "linux", "linux, gdb, lua, or make (any archive with a makefile)"),
        Parameter("source", "text", "", "the source archive (default for linux and lua: the newest in /usr/src)"),
        Parameter(
            "config",
            "text",
            "",
            "linux: make's target, tinyconfig by default; gdb: options of configure; lua: compiler flags",
            _FLAGS,
            "words that make and its shells leave as they are (letters, digits, and any of _.,:=+/@-)",
        ),
        Parameter(
            "target",
            "text",
            "",
            "what is made (default: mm/ of linux; all-gdb, or all-libiberty, its configure and library alone; linux of"
            " lua, or src/all; all)",
            _GOAL,
            "a target of a makefile (letters, digits, and any of _.,+/@-, no part beginning with a dash)",
        ),
        Parameter("artefact", "text", "", "file or folder that is compared (default: by the target)"),
        Parameter("jobs", "integer", 0, "make's jobs; 0: one for each CPU"),
        Parameter(
            "reference",
            "flag",
            True,
            "build it once more before, to compare with; false: the objects must be those of the cell's first attempt",
        ),
    )
    metrics = (
        *(metric for metric in COMMON if metric.name in ("wall_s", "cpu_s")),
        Metric("user_s", "s", "lower", "CPU time in programs, of the whole build"),
        Metric("system_s", "s", "lower", "CPU time in the kernel, of the whole build"),
    )
    # Measured, twins of mm/ of the kernel: 62% under thp and 72% under mthp-64k; the rest are small processes, brk
    # heaps that grow in steps, stacks, and the ends of areas. Under hugetlb-2m 52%, of cc1 alone 15%: a pool is not
    # delivered, and serves arms that are judged as settings.
    delivered_share = 0.55

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        if treatment.target.kind == "hugetlb" and treatment.target.size > _LARGEST_FOR_EACH:
            return f"malloc of every process of the build would take a page of {format_size(treatment.target.size)}"
        for name in ("target", "artefact"):
            given = str(values[name])
            if given.startswith(("-", "/")) or ".." in Path(given).parts:
                return f"{name} = {given!r} must lie in the source tree"
        if values["project"] == "linux" and re.fullmatch(_GOAL, str(values["config"])) is None:
            return f"config = {values['config']!r} is not a target of the kernel's makefile"
        return super().refuses(treatment, values)

    def stand_ins(self, values: Values) -> tuple[str, ...]:
        if values["project"] == "gdb" and (made := make_target(values)) in selected_project(values).parts:
            return (f"{made} of GDB in place of all-gdb",)
        return ("Lua in place of GDB",) if values["project"] == "lua" else ()

    def missing(self, values: Values) -> tuple[Missing, ...]:
        if values["project"] not in PROJECTS:
            return ()
        lacking = list(missing_programs(values))
        source = source_archive(values)
        if source is None:
            lacking.append(selected_project(values).lacking)
        elif not programs.within(source) and not Path(source).is_file():
            lacking.append(Missing(f"source = {source!r}: no such file"))
        return tuple(lacking)

    def memory(self, treatment: Treatment, values: Values) -> int:
        # each job runs a compiler; 96 MiB are seen for the largest of the kernel, and 1 GiB for GDB's C++
        large = values["project"] == "gdb" and not excluded_patterns(values)
        return _most_jobs(values) * (1 << 30 if large else 96 << 20)

    def pooled(self, treatment: Treatment, values: Values) -> int:
        """Return the pool's bytes: a compiler's malloc for each job, and 2 pages for each shell and make around it."""
        return (16 + 16 * _most_jobs(values)) * treatment.target.size

    def data(self, values: Values) -> Data:
        source, artefact = str(source_archive(values)), artefact_path(values)
        left_out = excluded_patterns(values)

        def recipe(places: Places) -> Iterable[Act]:
            jobs = _jobs(values, places)
            yield _step(places.data, "folder", ("mkdir", "tree"))
            exclude = tuple(f"--exclude={pattern}" for pattern in left_out)
            unpack = ("tar", "--extract", "--file", source, "--directory", "tree", "--strip-components=1")
            yield _step(places.data, "unpack", (*unpack, "--no-same-owner", *exclude))
            tree, other = f"{places.data}/tree", f"{places.data}/reference"
            commands = selected_project(values).configure(str(values["config"]), jobs)
            for number, argv in enumerate(commands, 1):
                yield _step(tree, f"configure-{number}", argv)
            if not values["reference"]:
                yield Write(path="warm.c", text="int main(void) { return 0; }\n")
                yield _step(places.data, "warm", ("gcc", "-O2", "-o", "warm", "warm.c"))
                yield _step(places.data, "remove", ("rm", "warm", "warm.c"))
                return
            yield _step(places.data, "copy", ("cp", "-a", "tree", "reference"))
            yield _step(other, "reference", make_command(values, other, jobs))
            yield _step(other, "files", (*_ALL_FILES, "-fprintf", f"{places.data}/{_FILES}", "%P\\n"))
            yield _step(other, "keep", _packed(f"{places.data}/{_REFERENCE}", artefact))
            yield _step(places.data, "remove", ("rm", "-r", "reference"))

        key: dict[str, str | int | float | bool] = {
            "source": programs.stamp(source),
            "compiler": programs.stamp(programs.which("gcc") or ""),
            "project": str(values["project"]),
            "config": str(values["config"]),
            "target": make_target(values),
            "artefact": artefact,
            "made": 1,
        }
        if not values["reference"]:
            key["reference"] = False
        small = left_out or values["project"] == "lua"
        size = 0.2 if small else 2.0  # GiB: the kernel's sources, and its objects beside them
        return Data(
            name=f"build-{values['project']}",
            key=key,
            recipe=recipe,
            bytes=int(size * (1 << 30)),
            inputs=() if programs.within(source) else (source,),
        )

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:
        tree = f"{places.data}/tree"
        timed = Launch(
            argv=make_command(values, tree, _jobs(values, places)),
            proof="twin",
            environment={**treatment.environment, **_FIXED},
            cwd=tree,
        )
        after = [
            _step(tree, "files", (*_ALL_FILES, "-printf", "%P\\n")),
            _step(tree, "artefact", _packed(f"{places.run}/{_ARTEFACT}", artefact_path(values))),
        ]
        if values["reference"]:
            after.append(_step(places.data, "reference", ("cp", _REFERENCE, _FILES, places.run)))
        return Procedure(timed=timed, after=tuple(after))

    def read(self, outputs: Outputs, values: Values) -> Reading:
        here, made = set(outputs.stdout("files").splitlines()), digests(only(outputs, _ARTEFACT))
        facts: dict[str, str | int | float] = {"objects": len(made), "files": len(here)}
        expected, problem = made, None
        same: tuple[str, ...] = ()
        if values["reference"]:
            there, expected = (
                set(only(outputs, _FILES).decode(errors="replace").splitlines()),
                digests(only(outputs, _REFERENCE)),
            )
            problem = _differs(here, there, "files of the tree") or _altered(made, expected)
        else:
            every = "".join(f"{name} {made[name]}\n" for name in sorted(made))
            facts["objects_sha256"] = hashlib.sha256(every.encode()).hexdigest()
            same = ("files", "objects_sha256")
        if not expected:
            raise ValueError(f"{artefact_path(values)} has no object file or library in it: name another artefact")
        used = outputs.sut
        why = "the build's CPU time was not counted by kind: no cgroup"
        return Reading(
            metrics={"user_s": used.user_s, "system_s": used.system_s},
            absent=dict.fromkeys(("user_s", "system_s"), why),
            facts=facts,
            same=same,
            problem=problem,
        )


def _most_jobs(values: Values) -> int:
    return integer(values, "jobs") or programs.cpus()


def _jobs(values: Values, places: Places) -> int:
    return integer(values, "jobs") or len(places.sut)


def _step(folder: str, name: str, argv: tuple[str, ...]) -> Step:
    return Step(name=name, argv=argv, cwd=folder, environment=_FIXED, timeout=_DAY, role="sut")


def _packed(path: str, artefact: str) -> tuple[str, ...]:
    return ("tar", "--create", "--file", path, "--sort=name", "--exclude=*.[chS]", artefact)


def _differs(here: set[str], there: set[str], what: str) -> str | None:
    if here == there:
        return None
    more, less = sorted(here - there), sorted(there - here)
    sentences = [f"{len(more)} more ({more[0]})"] if more else []
    sentences += [f"{len(less)} missing ({less[0]})"] if less else []
    return f"the {what} are not those of the reference: {', '.join(sentences)}"


def _altered(made: Mapping[str, str], expected: Mapping[str, str]) -> str | None:
    names = _differs(set(made), set(expected), "objects")
    other = sorted(name for name in made if made[name] != expected.get(name))
    if names is None and other:
        return f"the sections of {len(other)} of {len(made)} objects are not those of the reference ({other[0]})"
    return names


WORKLOAD = Build()
