"""Each kind of file is read by the tool that reads it where it is deployed; what no tool reads here is a kept text."""

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from hugewise.deployment import configuration, program, quoting
from hugewise.deployment.configuration import boot, now, sysctl, tmpfiles, tuned
from hugewise.deployment.program import BY_HAND, Destination, UnitFacts, for_program, of_unit, unit_facts
from hugewise.host.local_host import LocalHost
from hugewise.machine.proc import meminfo
from hugewise.model.pages import PageTarget
from hugewise.model.policy import UNREAD, DeployedFile, FileKind, Treatment
from tests import golden
from tests.build.hosts import Files
from tests.deployment.test_quoting import HOSTILE
from tests.requirements import need_program

OFF = Treatment(policy="base", mechanism="process", target=PageTarget("base", 4096), thp_disable="all")
ADVISED = Treatment(policy="madvise", mechanism="process", target=PageTarget("any", 4096), thp_disable="except-advised")
POOL = Treatment(
    policy="hugetlb-2m",
    mechanism="system",
    target=PageTarget("hugetlb", 2 << 20),
    environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"},
)
WORDS = ("/usr/bin/demo", *HOSTILE)


def place(file: DeployedFile, root: Path) -> Path:
    path = root / file.path.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.content, encoding="utf-8")
    return path


def one(files: tuple[DeployedFile, ...], kind: FileKind) -> DeployedFile:
    (found,) = (file for file in files if file.kind == kind)
    return found


def verified(root: Path, drop_in: DeployedFile, service: str = "Type=oneshot\nExecStart=/usr/bin/demo") -> str:
    """What systemd says to that service with that drop-in, below a root folder of its own."""
    analyze = need_program("systemd-analyze", "systemd")
    for name in ("usr/bin/demo", "usr/local/bin/hugewise-exec"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("#!/bin/sh\n")
        (root / name).chmod(0o755)
    place(drop_in, root)
    unit = root / "etc/systemd/system/demo.service"
    unit.write_text(f"[Unit]\nDefaultDependencies=no\n[Service]\n{service}\n")
    done = subprocess.run(
        [analyze, "verify", f"--root={root}", "--man=no", "demo.service"], capture_output=True, text=True, check=False
    )
    return done.stderr + (f"[{done.returncode}]" if done.returncode else "")


@pytest.mark.parametrize("variables", [{}, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, {"A": "".join(HOSTILE)}])
@pytest.mark.parametrize("treatment", [OFF, ADVISED, POOL])
def test_systemd_reads_a_drop_in(treatment: Treatment, variables: dict[str, str], tmp_path: Path) -> None:
    where = Destination(policy="p", words=WORDS, environment=variables or treatment.environment, facts=UnitFacts(252))
    drop_in = of_unit(one(for_program(treatment, where), "unit"), "demo.service")
    assert drop_in.label == "read by systemd-analyze"
    assert drop_in.path == "/etc/systemd/system/demo.service.d/50-page-sizes.conf"
    assert verified(tmp_path, drop_in) == ""
    assert ("--pages" in drop_in.content) == (treatment is not POOL)


def test_systemd_would_have_said_what_is_wrong(tmp_path: Path) -> None:
    """A key that a hostile text could have become is seen by the same call."""
    drop_in = of_unit(one(for_program(OFF, Destination(policy="p", words=("/usr/bin/demo",))), "unit"), "demo.service")
    broken = msgspec.structs.replace(drop_in, content=f"{drop_in.content}Bogus=1\n")
    assert "Unknown key 'Bogus'" in verified(tmp_path, broken)


def test_memory_thp_is_for_a_systemd_that_knows_it() -> None:
    """systemd here is older: its text is kept, and says that no tool here has read it."""
    for treatment, word in ((OFF, "disable"), (ADVISED, "madvise")):
        drop_in = one(for_program(treatment, Destination(policy="p", facts=UnitFacts(260))), "unit")
        assert (drop_in.content, drop_in.label) == (f"[Service]\nMemoryTHP={word}\n", UNREAD)
        assert drop_in.needs[0] == "systemd 260 or later"
    assert "Linux 6.18" in drop_in.needs[1]
    # Without it, and without the unit's words, its user has to complete it.
    drop_in = one(for_program(OFF, Destination(policy="p", facts=UnitFacts(259))), "unit")
    assert (drop_in.label, BY_HAND in drop_in.needs) == ("read by systemd-analyze", True)


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({}, None),
        ({"/usr/lib/systemd/libsystemd-shared-252.so": ""}, 252),
        ({"/usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-260.1-2.so": ""}, 260),
        ({"/lib/systemd/libsystemd-shared-x.so": "", "/lib/systemd/systemd": ""}, None),
    ],
)
def test_the_version_of_systemd_is_that_of_its_library(files: dict[str, str], version: int | None) -> None:
    assert unit_facts(Files(files)) == UnitFacts(version)


def test_the_version_here_is_what_systemd_says() -> None:
    analyze = need_program("systemd-analyze", "systemd")
    output = subprocess.run([analyze, "--version"], capture_output=True, text=True, check=True).stdout
    assert unit_facts(LocalHost()).systemd == int(output.split()[1])


def test_a_launcher_hands_the_words_on_as_they_are(tmp_path: Path) -> None:
    where = Destination(policy="p", words=("printf", "%s\\0", *HOSTILE), environment={"A": "x y"})
    file = one(for_program(POOL, where), "launcher")
    done = subprocess.run(["sh", place(file, tmp_path)], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == list(HOSTILE)
    any_command = one(for_program(POOL, Destination(policy="p", environment={"A": "x y"})), "launcher")
    done = subprocess.run(
        ["sh", place(any_command, tmp_path), "sh", "-c", 'printf "$A"'], capture_output=True, check=True
    )
    assert done.stdout == b"x y"
    off = one(for_program(OFF, Destination(policy="p", words=("/bin/true", "a b"))), "launcher")
    assert off.content.splitlines()[-1] == f"exec {program.LAUNCHER} --pages off -- /bin/true 'a b' \"$@\""
    of_the_host = Treatment(policy="thp", mechanism="system", target=PageTarget("thp", 2 << 20))
    assert for_program(of_the_host, Destination(policy="p")) == (), "no files of a program"


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("name", ["A=B", "X=Y=", "-a", "-a=b", "--", "-c", "$(id)", "a b", "#"])
def test_a_program_of_any_name_is_the_program(name: str, shell: str, tmp_path: Path) -> None:
    """Not a variable, an option or a word of the shell: then the next word would have been the program."""
    tool = need_program(shell, shell)
    folder = tmp_path / "bin"
    folder.mkdir()
    for each, text in ((name, "it"), ("other", "another")):
        (folder / each).write_text(f'#!/bin/sh\nprintf "%s|" {text} "$V" "$@"\n')
        (folder / each).chmod(0o755)
    where = Destination(policy="p", words=(name, "other", "b=c"), environment={"V": "x $y"})
    file = one(for_program(POOL, where), "launcher")
    environment = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(
        [tool, place(file, tmp_path), "-d"], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stdout == "it|x $y|other|b=c|-d|", done.stderr


def expanded(text: str, variables: dict[str, str]) -> str:
    """As Kubernetes expands a word of a command or a value (third_party/forked/golang/expansion)."""
    made, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            made, at = made + text[at], at + 1
        elif text[at + 1] == "$":
            made, at = made + "$", at + 2
        elif text[at + 1] == "(" and (end := text.find(")", at)) > 0:
            name = text[at + 2 : end]
            made, at = made + variables.get(name, f"$({name})"), end + 1
        else:
            made, at = made + text[at : at + 2], at + 2
    return made


@pytest.mark.parametrize("text", ["$(V)", "$$(V)", "$$$(V)", "a$$5", "$", "$$", "a$(", "${V}", "100%"])
def test_a_pod_has_the_words_as_they_are(text: str) -> None:
    where = Destination(policy="p", words=("/bin/x", text), environment={"A": text})
    content = one(for_program(OFF, where), "kubernetes").content
    (value,) = re.findall(r'value: "(.*)"', content)
    ((_, word),) = re.findall(r'args: \["(.*)", "(.*)"\]', content)
    assert expanded(value, {"V": "leaked"}) == text
    assert expanded(word, {"V": "leaked"}) == text


def test_systemd_tmpfiles_writes_the_settings(tmp_path: Path) -> None:
    tool = need_program("systemd-tmpfiles", "systemd")
    settings = {"/sys/kernel/mm/x/hugepages-64kB/enabled": "never", "/sys/kernel/mm/x/enabled": "always"}
    for name in settings:
        (tmp_path / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name.lstrip("/")).touch()  # sysfs takes a write as a whole
    path = place(tmpfiles(settings), tmp_path)
    subprocess.run([tool, "--create", f"--root={tmp_path}", path], check=True)
    assert {name: (tmp_path / name.lstrip("/")).read_text() for name in settings} == settings


def test_sysctl_reads_the_pool(tmp_path: Path) -> None:
    tool = need_program("sysctl", "procps")
    path = place(sysctl(5), tmp_path)
    done = subprocess.run([tool, "--dry-run", f"--load={path}"], capture_output=True, text=True, check=True)
    assert done.stdout == "vm.nr_hugepages = 5\n"
    assert "Hugepagesize" in meminfo(LocalHost())


def test_a_script_sets_what_it_says_sizes_that_are_off_in_one_line_before_those_that_are_on(tmp_path: Path) -> None:
    """On files of its own: no setting of this machine is turned."""
    knob = tmp_path / "enabled"
    file = now({str(knob): "always"})
    subprocess.run(["sh", place(file, tmp_path)], check=True)
    assert knob.read_text() == "always\n"
    shown = subprocess.run(["sh", "-c", file.check], capture_output=True, text=True, check=True)
    assert shown.stdout == "always\n"
    sizes = {str(tmp_path / f"hugepages-{size}kB" / "enabled"): "never" for size in (16, 64, 2048)}
    for path in sizes:
        Path(path).parent.mkdir()
        Path(path).touch()
    (on, *off) = sizes
    file = now({**sizes, on: "always"})
    assert len([line for line in file.content.splitlines() if "echo" in line]) == 2
    subprocess.run(["sh", place(file, tmp_path)], check=True)
    assert [Path(path).read_text() for path in (on, *off)] == ["always\n", *["never\n"] * len(off)]


def test_a_shell_takes_the_words_of_the_kernels_command_line(tmp_path: Path) -> None:
    path = place(boot(("hugepagesz=2M", "hugepages=0:2,2:1")), tmp_path)
    command = f'GRUB_CMDLINE_LINUX=quiet; . {path}; printf %s "$GRUB_CMDLINE_LINUX"'
    done = subprocess.run(["sh", "-euc", command], capture_output=True, text=True, check=True)
    assert done.stdout == "quiet hugepagesz=2M hugepages=0:2,2:1"


def test_what_no_tool_here_reads_is_kept() -> None:
    where = Destination(
        policy="p", words=("/usr/bin/demo", "a b", "$X: 'y'"), environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"}
    )
    files = [
        tuned({"/sys/kernel/mm/transparent_hugepage/enabled": "always"}),
        *(one(for_program(POOL, where, 3 << 20), kind) for kind in ("compose", "kubernetes")),
        *(one(for_program(OFF, where), kind) for kind in ("compose", "kubernetes")),
        one(for_program(ADVISED, Destination(policy="p", facts=UnitFacts(260))), "unit"),
    ]
    assert {file.label for file in files} == {UNREAD}
    golden.same("\n".join(f"{file.path}\n{file.content}" for file in files), golden.GOLDEN / "deployed.txt")


def test_mariadb_reads_its_file(tmp_path: Path) -> None:
    tool = need_program("mariadbd", "mariadb-server-core")
    for large, word in ((True, "TRUE"), (False, "FALSE")):
        path = place(configuration.mariadb(large=large), tmp_path)
        command = [tool, f"--defaults-file={path}", "--help", "--verbose"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        told = dict(line.split(None, 1) for line in done.stdout.splitlines() if line.startswith("large-pages"))
        assert told["large-pages"].strip() == word


@pytest.mark.parametrize("bad", [{"huge_pages": "on\nport = 1"}, {"a b": "on"}])
def test_settings_of_postgresql_are_plain(bad: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="not a plain word"):
        configuration.postgresql(bad)


def test_a_unit_keeps_its_name_in_every_command() -> None:
    drop_in = of_unit(one(for_program(OFF, Destination(policy="p", words=("/x",))), "unit"), quoting.unit_name("a@b"))
    told = (drop_in.path, *drop_in.apply, *drop_in.undo, drop_in.check)
    assert all("PROGRAM" not in each for each in told)
    assert drop_in.check == "hugewise verify a@b.service --policy p"
    escaped = of_unit(one(for_program(OFF, Destination(policy="p", words=("/x",))), "unit"), r"a\x2db.service")
    assert escaped.path == r"/etc/systemd/system/a\x2db.service.d/50-page-sizes.conf"
    assert escaped.apply[1] == r"systemctl restart 'a\x2db.service'"


@pytest.mark.parametrize("last", ["requirepass foo", "requirepass foo\n", ""])
@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_what_is_appended_is_no_part_of_the_last_line(kind: str, last: str, tmp_path: Path) -> None:
    """A file whose last line is open would have had another password, or none."""
    file = configuration.redis(disable_thp=False) if kind == "redis" else configuration.memcached()
    conf, mine = tmp_path / f"{kind}.conf", tmp_path / "mine"
    conf.write_text(last)
    mine.write_text(file.content)
    for command in file.apply[:-1]:
        told = command.replace(f"/etc/redis/{kind}.conf", str(conf)).replace(f"/etc/{kind}.conf", str(conf))
        subprocess.run(["sh", "-c", told.replace(f"cat {file.path}", f"cat {mine}")], check=True)
    added = f"include {file.path}" if kind == "redis" else "-L"
    assert conf.read_text() == (f"{last.strip()}\n" if last else "") + f"{added}\n"
