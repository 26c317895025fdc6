"""A drop-in that keeps the words of the unit which it is for, as systemd reads both together."""

from pathlib import Path

import pytest

from hugewise.deployment.program import BY_HAND, Destination, UnitFacts, UnitStart, completed, for_program, of_unit
from hugewise.model.pages import PageTarget
from hugewise.model.policy import DeployedFile, Treatment
from tests.deployment.test_kinds import ADVISED, OFF, POOL, one, verified

LAUNCH = '/usr/local/bin/hugewise-exec "--pages" "off" --'
LAID = Treatment(policy="layout-thp", mechanism="process", target=PageTarget("thp", 2 << 20), layout="thp")
AT = "/lib/systemd/system/demo.service:7"


def drop_in(treatment: Treatment = OFF, words: tuple[str, ...] = (), **variables: str) -> DeployedFile:
    given = variables or treatment.environment
    where = Destination(policy="p", words=words, environment=given, facts=UnitFacts(252))
    return of_unit(one(for_program(treatment, where), "unit"), "demo.service")


def start(*texts: str, **more: str | bool) -> UnitStart:
    return UnitStart(name="demo.service", starts=tuple((AT, text) for text in texts), **more)  # type: ignore[arg-type]


def lines(treatment: Treatment, unit: UnitStart, words: tuple[str, ...] = ()) -> list[str]:
    return [line for line in completed(drop_in(treatment, words), unit).content.split("\n") if line]


@pytest.mark.parametrize("words", [(), ("/opt/own/copy", "--measured")])
def test_its_own_words_stand_behind_the_launcher_as_they_are_written(words: tuple[str, ...]) -> None:
    text = '/usr/bin/demo --config=%E/demo.conf "a \\"b" $OPTIONS ${ONE} \\; x'
    assert lines(OFF, start(text), words) == [
        "[Service]",
        f"# The unit's own ExecStart= ({AT}) behind the launcher; the list is emptied first.",
        "ExecStart=",
        f"ExecStart={LAUNCH} {text}",
    ]
    made = completed(drop_in(OFF, words), start(text))
    assert BY_HAND not in made.needs
    assert "hugewise-exec as /usr/local/bin/hugewise-exec" in made.needs


@pytest.mark.parametrize(
    "text", ["./demo --x", "bin/demo", '"bin/the demo"', "-./demo", "@./demo called", "/bin/a ; ./b"]
)
def test_a_relative_path_of_a_program_is_refused(text: str) -> None:
    """The launcher would look for it below /, where systemd begins a service."""
    made = lines(OFF, start(text))
    (why,) = [line for line in made if "could not be taken as it is" in line]
    assert f"{AT}: systemd takes no relative path of a program: " in why
    assert not any(line.startswith("ExecStart=") for line in made)
    assert completed(drop_in(OFF), start(text)).needs[0] == BY_HAND


@pytest.mark.parametrize(
    ("program", "taken"), [("./demo", False), ("bin/demo", False), ("/opt/demo", True), ("demo", True)]
)
def test_a_command_with_a_relative_path_is_to_be_completed(program: str, taken: bool) -> None:
    made = drop_in(OFF, (program, "x"))
    assert (f'\nExecStart={LAUNCH} "{program}" "x"' in made.content) == taken
    assert (BY_HAND in made.needs) != taken


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("-/usr/bin/demo", [f"ExecStart=-{LAUNCH} /usr/bin/demo"]),
        ("!!:/usr/bin/demo x", [f"ExecStart=!!:{LAUNCH} /usr/bin/demo x"]),
        ("@/usr/bin/demo called x", [f"ExecStart={LAUNCH.removesuffix('--')}--argv0 called -- /usr/bin/demo x"]),
        ("/bin/a 1 ; -/bin/b 2", [f"ExecStart={LAUNCH} /bin/a 1", f"ExecStart=-{LAUNCH} /bin/b 2"]),
        (
            '/usr/local/bin/hugewise-exec "--pages" "advised" -- /usr/bin/demo x',
            [f"ExecStart={LAUNCH} /usr/bin/demo x"],
        ),
    ],
)
def test_what_stands_before_a_command_keeps_its_meaning(text: str, made: list[str]) -> None:
    assert lines(OFF, start(text))[3:] == made


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ((), "it has no ExecStart="),
        (("|demo | x",), "a shell runs it"),
        (('/usr/bin/demo "open',), "its quotes do not match"),
        (("/usr/bin/demo \x1b[31m",), "characters that cannot be printed"),
        (("@/usr/bin/demo",), "`@` stands before one word alone"),
    ],
)
@pytest.mark.parametrize("words", [(), ("/opt/own/copy", "--measured")])
def test_what_cannot_be_taken_over_is_left_to_be_completed(
    texts: tuple[str, ...], why: str, words: tuple[str, ...]
) -> None:
    made = completed(drop_in(OFF, words), start(*texts))
    assert why in made.content
    assert BY_HAND in made.needs
    assert not any(line.startswith("ExecStart=") for line in made.content.split("\n")), "it does nothing before"


def test_without_the_unit_it_says_which_lines_are_to_be_completed() -> None:
    made = drop_in()
    assert made.content == (
        "[Service]\n"
        "# To be completed: in place of the dots the words of the unit's own ExecStart= (see systemctl cat).\n"
        "# Then take the # from both lines; the first empties the list.\n"
        "# ExecStart=\n"
        f"# ExecStart={LAUNCH} ...\n"
    )
    assert BY_HAND in made.needs
    assert drop_in(POOL).content == '[Service]\nEnvironment="GLIBC_TUNABLES=glibc.malloc.hugetlb=2"\n', "nothing to do"
    assert BY_HAND not in drop_in(POOL).needs


@pytest.mark.parametrize(
    ("unit", "made"),
    [
        ({}, ['Environment="GLIBC_TUNABLES=glibc.malloc.hugetlb=2"']),
        (
            {"tunables": "glibc.malloc.hugetlb=1", "tuned_by": "unit"},
            ['Environment="GLIBC_TUNABLES=glibc.malloc.hugetlb=2"'],
        ),
        (
            {"tunables": "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1", "tuned_by": "unit"},
            ['Environment="GLIBC_TUNABLES=glibc.malloc.arena_max=1:glibc.malloc.hugetlb=2"'],
        ),
        (
            {"tunables": "glibc.pthread.rseq=0", "tuned_by": "file", "tuned_at": "/etc/default/demo:3"},
            [
                "# its EnvironmentFile= sets GLIBC_TUNABLES (/etc/default/demo:3), which decides over this: add"
                " glibc.malloc.hugetlb=2 there.",
                'Environment="GLIBC_TUNABLES=glibc.pthread.rseq=0:glibc.malloc.hugetlb=2"',
            ],
        ),
    ],
)
def test_tunables_of_the_unit_stay_beside_ours(unit: dict[str, str], made: list[str]) -> None:
    assert lines(POOL, start("/usr/bin/demo", **unit)) == ["[Service]", *made]


def test_a_unit_that_may_execute_little_may_execute_the_launcher() -> None:
    """Debian's redis-server.service is such a one."""
    assert not any("ExecPaths" in line for line in lines(OFF, start("/usr/bin/demo")))
    (line,) = (line for line in lines(OFF, start("/usr/bin/demo", confined=True)) if line.startswith("ExecPaths="))
    assert line.startswith("ExecPaths=/usr/local/bin/hugewise-exec -/usr/local/")


def test_any_other_file_is_as_it_is() -> None:
    launcher = one(for_program(OFF, Destination(policy="p")), "launcher")
    assert completed(launcher, start("/usr/bin/demo")) == launcher


@pytest.mark.parametrize("treatment", [OFF, ADVISED, POOL, LAID])
@pytest.mark.parametrize(
    "text",
    [
        '/usr/bin/demo --config=%E/demo.conf "a \\"b" $OPTIONS ${ONE} \\; x',
        "-/usr/bin/demo",
        "@/usr/bin/demo called x",
        "+/usr/bin/demo 'a b'",
    ],
)
def test_systemd_reads_it_with_its_unit(tmp_path: Path, treatment: Treatment, text: str) -> None:
    for number, unit in enumerate((start(text), start(text, confined=True), start())):
        file = completed(drop_in(treatment), unit)
        root = tmp_path / str(number)
        assert verified(root, file, f"Type=simple\nExecStart={text}") == ""


def test_systemd_would_have_said_that_there_are_two(tmp_path: Path) -> None:
    """Without the line that empties the list."""
    file = completed(drop_in(), start("/usr/bin/demo"))
    two = DeployedFile(
        kind="unit", path=file.path, content=file.content.replace("ExecStart=\n", ""), scope="service", undo=(),
        check="", label="",
    )  # fmt: skip
    assert "more than one ExecStart" in verified(tmp_path, two, "Type=simple\nExecStart=/usr/bin/demo")
