"""A build: its recipe and procedure by hand on a project of three files, what is compared, and whole runs."""

import io
import os
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from hugewise.machine.loader import sections
from hugewise.model.procedure import Places, Step, Write
from hugewise.model.workload import ParameterValue
from hugewise.workloads.build import WORKLOAD, digests
from tests.build import known, workloads
from tests.build.workloads import BASE, Said, use
from tests.requirements import need, need_program
from tests.servers.trying import accepted, attempts, need_pages, tried

USED = use(1.5, 1.0, 0.5)
MAKEFILE = """\
all: program
program: one.o two.o
\t$(CC) -o $@ $^
%.o: %.c
\t$(CC) $(CFLAGS) -g -ffile-prefix-map=$(CURDIR)=. -c -o $@ $<
"""

# A program that is another one in each build.
RANDOM = MAKEFILE.replace("two.o\n", "two.o made.o\n") + (
    "made.c:\n\techo 'const char made[] = \"'$$(cat /proc/sys/kernel/random/uuid)'\";' >$@\n"
)


def values(**given: ParameterValue) -> dict[str, ParameterValue]:
    return workloads.given(WORKLOAD, **given)


def archive(folder: Path, *, functions: int = 20, makefile: str = MAKEFILE) -> Path:
    """The sources of a program whose compilation takes some MiB."""
    path = folder / "project.tar.gz"
    body = "".join(f"int f{n}(int a) {{ int s = 0; while (a) s += a--; return s * {n}; }}\n" for n in range(functions))
    files = {
        "Makefile": makefile,
        "one.c": '#include <stdio.h>\nint f1(int);\nint main(void) { printf("%d\\n", f1(3)); return 0; }\n',
        "two.c": body,
    }
    with tarfile.open(path, "w:gz") as made:
        for name, text in files.items():
            member = tarfile.TarInfo(f"project-1/{name}")
            member.size, member.mtime = len(text), 1_600_000_000
            made.addfile(member, io.BytesIO(text.encode()))
    path.chmod(0o644)
    return path


def do(step: Step) -> str:
    environment = {"PATH": os.environ["PATH"], **step.environment}
    done = subprocess.run(step.argv, cwd=step.cwd, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def places(folder: Path, name: str) -> Places:
    for each in (folder / name, folder / "run"):
        each.mkdir(exist_ok=True)
    return Places(data=str(folder / name), run=str(folder / "run"), ports=(), sut=(0,), client=(0,))


def played(folder: Path, given: Mapping[str, ParameterValue]) -> Said:
    """The recipe in one folder, then an attempt in another one; what the attempt left."""
    for act in WORKLOAD.data(given).recipe(places(folder, "made")):
        if isinstance(act, Write):
            (folder / "made" / act.path).write_text(act.text)
            continue
        assert isinstance(act, Step)
        do(act)
    (folder / "made").rename(folder / "attempt")
    procedure = WORKLOAD.procedure(BASE, given, places(folder, "attempt"))
    environment = {"PATH": os.environ["PATH"], **procedure.timed.environment}
    subprocess.run(procedure.timed.argv, cwd=procedure.timed.cwd, env=environment, capture_output=True, check=True)
    said = {step.name: do(step) for step in procedure.after}
    return Said(said, files={path.name: path.read_bytes() for path in (folder / "run").iterdir()}, sut=USED)


@pytest.fixture
def project(tmp_path: Path) -> dict[str, ParameterValue]:
    need_program("make", "make")
    need_program("gcc", "gcc")
    return values(project="make", source=str(archive(tmp_path)))


def test_what_is_built_elsewhere_is_the_reference(tmp_path: Path, project: dict[str, ParameterValue]) -> None:
    reading = WORKLOAD.read(played(tmp_path, project), project)
    assert reading.problem is None
    assert reading.metrics == {"user_s": 1.0, "system_s": 0.5}
    assert reading.facts == {"objects": 3, "files": 6}


def test_without_a_reference_the_digest_of_the_objects_is_told(
    tmp_path: Path, project: dict[str, ParameterValue]
) -> None:
    alone = {**project, "reference": False}
    first, second, third = folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
    readings = [WORKLOAD.read(played(folder, alone), alone) for folder in (first, second)]
    assert [reading.problem for reading in readings] == [None, None]
    assert readings[0].facts == readings[1].facts
    assert set(readings[0].facts) == {"objects", "files", "objects_sha256"}
    assert {reading.same for reading in readings} == {("files", "objects_sha256")}
    assert sorted(path.name for path in (first / "attempt").iterdir()) == ["tree"]
    assert not (first / "run" / "reference.tar").exists()
    other = {**alone, "source": str(archive(third, functions=3))}
    assert WORKLOAD.read(played(third, other), other).facts["objects_sha256"] != readings[0].facts["objects_sha256"]


def test_another_result_is_a_failure(tmp_path: Path, project: dict[str, ParameterValue]) -> None:
    left = played(tmp_path, project)
    do(Step(name="more", argv=("make", "-B", "CFLAGS=-O2"), cwd=f"{tmp_path}/attempt/tree"))
    packed = ("tar", "--create", "--file", f"{tmp_path}/run/artefact.tar", ".")
    do(Step(name="packed", argv=packed, cwd=f"{tmp_path}/attempt/tree"))
    files = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    other = Said({"files": left.stdout("files")}, files=files, sut=USED)
    assert "sections of 3 of 3 objects are not those of the reference" in (WORKLOAD.read(other, project).problem or "")
    longer = Said({"files": left.stdout("files") + "core\n"}, files=files, sut=USED)
    assert "the files of the tree are not those of the reference: 1 more (core)" in (
        WORKLOAD.read(longer, project).problem or ""
    )


def test_a_reference_without_objects_is_an_error(project: dict[str, ParameterValue]) -> None:
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    files = {name: empty.getvalue() for name in ("artefact.tar", "reference.tar", "reference.files")}
    with pytest.raises(ValueError, match="has no object file or library in it"):
        WORKLOAD.read(Said({"files": ""}, files=files), project)
    with pytest.raises(ValueError, match=r"artefact\.tar is missing"):
        WORKLOAD.read(Said({"files": ""}), project)


def test_sections_are_those_that_readelf_lists(tmp_path: Path) -> None:
    need_program("gcc", "gcc")
    need_program("readelf", "binutils")
    (tmp_path / "a.c").write_text("int zeros[100]; int main(void) { return zeros[3]; }")
    do(Step(name="compile", argv=("gcc", "-c", "a.c"), cwd=str(tmp_path)))
    data = (tmp_path / "a.o").read_bytes()
    listed = do(Step(name="list", argv=("readelf", "-SW", "a.o"), cwd=str(tmp_path)))
    names = re.findall(r"^ +\[ *[1-9]\d*\] (\S+)", listed, re.MULTILINE)
    assert [found.name for found in sections(data)] == ["", *names]
    with pytest.raises(ValueError, match="cut short"):
        sections(data[: len(data) // 2])
    with pytest.raises(ValueError, match="not an ELF file"):
        sections(b"#!/bin/sh")
    with pytest.raises(ValueError, match="not a tar file"):
        digests(b"x" * 2000)


def test_the_kernel_s_part_is_unpacked_without_what_it_does_not_need(tmp_path: Path) -> None:
    source = str(archive(tmp_path))
    steps = {act.name: act.argv for act in _recipe(values(source=source)) if isinstance(act, Step)}
    assert "--exclude=*/drivers/*.[chS]" in steps["unpack"]
    assert steps["configure-1"] == ("make", "tinyconfig")
    assert steps["reference"] == ("make", "-j2", "mm/")
    whole = {act.name: act.argv for act in _recipe(values(source=source, target="vmlinux", config="defconfig"))}
    assert not any(word.startswith("--exclude") for word in whole["unpack"])
    assert whole["keep"][-1] == "vmlinux"


def _recipe(given: Mapping[str, ParameterValue]) -> list[Step]:
    here = Places(data="/d", run="/r", ports=(), sut=(0, 1), client=(0, 1))
    return [act for act in WORKLOAD.data(given).recipe(here) if isinstance(act, Step)]


def test_paths_and_times_do_not_reach_the_objects() -> None:
    here = Places(data="/d", run="/r", ports=(), sut=(0, 1, 2), client=(0, 1, 2))
    procedure = WORKLOAD.procedure(BASE, values(project="gdb", source="/s.tar.xz"), here)
    assert procedure.timed.argv[:3] == ("make", "-j3", "all-gdb")
    assert "CXXFLAGS=-g -O2 -ffile-prefix-map=/d/tree=." in procedure.timed.argv
    assert procedure.timed.cwd == "/d/tree"
    assert {"SOURCE_DATE_EPOCH", "KBUILD_BUILD_TIMESTAMP", "KBUILD_BUILD_HOST"} <= set(procedure.timed.environment)


def test_an_archive_that_is_not_there_is_named_with_the_way_to_get_it() -> None:
    (gdb,) = (each for each in WORKLOAD.missing(values(project="gdb")) if "GDB" in each.reason)
    assert "hugewise guest source gdb" in gdb.reason
    (named,) = (each for each in WORKLOAD.missing(values(source="/no/such.tar")) if "/no/such.tar" in each.reason)
    assert named.reason == "source = '/no/such.tar': no such file"


def need_builds(place: Path) -> None:
    """A real build of sources that lie in `place`; the account nobody unpacks them."""
    need_pages()
    lacking = WORKLOAD.missing(values(project="make", source=str(place)))
    need(
        not [each for each in lacking if each.package], "; ".join(f"{each.reason} ({each.package})" for each in lacking)
    )


@pytest.mark.whole
@pytest.mark.soak
def test_its_compilers_are_backed_as_the_policy_says(reached: Path) -> None:
    need_builds(reached)
    source = str(archive(reached, functions=3000))
    # Two files: the linker and the shells beside one compiler weigh more than in a real build.
    workload = {"name": "build", "parameters": {"project": "make", "source": source}, "delivery": {"share": 0.4}}
    never = {"name": "never", "from": "mthp-64k", "set": {"hugepages-64kB/enabled": "never"}}
    found = tried(reached, workload, ["base", "mthp-64k", "hugetlb-2m", never])
    accepted(found)
    assert found["base"].delivery.delivered is True
    assert found["mthp-64k"].delivery.delivered is True
    assert found["never"].delivery.delivered is False
    assert {attempt.delivery.proof for attempt in found.values()} == {"twin"}
    for attempt in found.values():
        assert known(attempt.metrics["page_faults"]) > 1000


@pytest.mark.whole
def test_without_a_reference_an_attempt_that_makes_something_else_has_failed(reached: Path) -> None:
    need_builds(reached)
    source = str(archive(reached, makefile=RANDOM))
    parameters = {"project": "make", "source": source, "artefact": "made.o", "reference": False}
    workload = {"name": "build", "parameters": parameters, "delivery": {"share": 0}}
    first, *others = attempts(reached, workload, ["base", "thp"], blocks=2)
    assert (first.state, len(others)) == ("accepted", 3)
    said = f"it was {first.facts['objects_sha256']}: it must be the same in all attempts"
    for other in others:
        assert (other.state, other.metrics) == ("failed", {})
        assert other.reason == f"objects_sha256 is {other.facts['objects_sha256']}, and in block 1 ({first.arm}) {said}"
