"""Options of runtimes, allocators and servers: which a program gets, and which it has already."""

from pathlib import Path

import pytest

from hugewise.advise.program import thp_option
from hugewise.advise.question import Question, command, service
from hugewise.deployment.runtimes import ALLOCATORS, OwnOption, own_option, turns_off
from hugewise.inspection.allocator import allocator_of
from hugewise.plan import deployment

JVM = {"JAVA_TOOL_OPTIONS": "-XX:+UseTransparentHugePages"}


@pytest.mark.parametrize(
    ("allocator", "words", "server", "variables", "more"),
    [
        ("the JVM", ("java", "-jar", "x.jar"), False, JVM, ()),
        ("jemalloc", ("app",), False, {"MALLOC_CONF": "thp:always"}, ()),
        ("jemalloc of Rust", ("app",), False, {"_RJEM_MALLOC_CONF": "thp:always"}, ()),
        ("jemalloc", ("/usr/bin/redis-server", "x.conf"), True, {"MALLOC_CONF": "thp:always"}, ("--disable-thp", "no")),
        ("jemalloc of redis", ("redis-server",), True, {"JE_MALLOC_CONF": "thp:always"}, ("--disable-thp", "no")),
        ("glibc", ("memcached", "-u", "my-Lab"), True, {}, ("-L",)),
    ],
)
def test_a_program_is_told_by_its_own_option(
    allocator: str, words: tuple[str, ...], server: bool, variables: dict[str, str], more: tuple[str, ...]
) -> None:
    assert own_option(allocator, words, {"PATH": "/bin"}, server=server) == OwnOption(variables, more)


@pytest.mark.parametrize(
    ("allocator", "words", "environment", "why"),
    [
        ("the JVM", ("java", "-XX:+UseLargePages"), {}, "says UseLargePages itself"),
        (
            "the JVM",
            ("java",),
            {"_JAVA_OPTIONS": "-XX:-UseTransparentHugePages"},
            "says UseTransparentHugePages itself",
        ),
        ("the JVM", ("java",), {"JAVA_TOOL_OPTIONS": "-ea"}, "JAVA_TOOL_OPTIONS is set already: add -XX:+UseTransp"),
        ("jemalloc", ("app",), {"MALLOC_CONF": "narenas:1"}, "MALLOC_CONF is set already: add thp:always"),
        ("jemalloc", ("redis-server", "--disable-thp", "yes"), {}, "says disable-thp itself"),
        ("glibc", ("memcached", "-L"), {}, "says -L itself"),
    ],
)
def test_an_option_that_is_decided_already_is_left_to_its_user(
    allocator: str, words: tuple[str, ...], environment: dict[str, str], why: str
) -> None:
    found = own_option(allocator, words, environment, server=True)
    assert isinstance(found, str) and why in found


def test_a_runtime_without_an_option_has_none() -> None:
    for allocator in ("Go", "musl", "tcmalloc", "glibc", ""):
        assert own_option(allocator, ("app",), {}, server=True) is None
    assert own_option("glibc", ("redis-server",), {}, server=False) is None, "the words of a command stay as they are"
    assert turns_off(("/opt/redis-server", "--port", "1"))
    assert turns_off(("redis-server", "--disable-thp", "yes"))
    assert not turns_off(("redis-server", "--disable-thp", "no"))
    assert not turns_off(("memcached",)) and not turns_off(())


def test_the_launcher_of_a_jvm_is_known_by_the_library_beside_it(tmp_path: Path) -> None:
    for place in ("bin", "lib/server"):
        (tmp_path / place).mkdir(parents=True)
    java = tmp_path / "bin" / "java"
    java.write_bytes(Path("/bin/true").read_bytes())
    java.chmod(0o755)
    found = allocator_of((str(java),), {})
    assert found is not None and found.name == "glibc"
    (tmp_path / "lib/server/libjvm.so").touch()
    found = allocator_of((str(java),), {})
    assert found is not None and (found.name, found.tuned) == ("the JVM", False)


def test_an_arm_has_the_variables_and_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    assert thp_option("the JVM", Question(workload=command(("java", "X"))), ("java", "X")) == {"environment": JVM}
    words = ("redis-server", "--port", "{port}")
    asked = Question(workload=service(words, ("load",), seconds=60.0))
    assert thp_option("jemalloc", asked, words) == {
        "environment": {"MALLOC_CONF": "thp:always"},
        "parameters": {"server": [*words, "--disable-thp", "no"]},
    }
    assert thp_option("Go", asked, ("app",)) is None


def test_files_are_made_again_of_each_option_and_of_no_other_value() -> None:
    """A forged run could load an agent into a JVM by such a variable."""
    for option in ALLOCATORS.values():
        deployment._variables(option.environment)
    for value in ("-javaagent:/tmp/x.jar", "-XX:+UseTransparentHugePages -javaagent:/tmp/x.jar", ""):
        with pytest.raises(ValueError, match="no allocator's"):
            deployment._variables({"JAVA_TOOL_OPTIONS": value})
