"""What stands in a text never becomes another word, line or key of the format that it is written in."""

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.deployment import quoting
from hugewise.deployment.configuration import boot, now, sysctl, tmpfiles, tuned, with_evidence
from hugewise.errors import UserError
from hugewise.model.guest import Backing
from hugewise.model.policy import Deployment
from hugewise.plan.guest_deployment import deployed

HOSTILE = (
    "a b",
    'a" "b',
    "a\\",
    "%h %% $HOME ${X} $$",
    "x\nExecStart=/bin/sh",
    "x\r\x0b\x1b[2J\u2028\u202ey",
    ";",
    "'; rm -rf /; '",
    "- key: value # comment",
    "*anchor &x !!tag",
    "--> <script>",
    "größe 漢字 \U0001f600",
    "",
)
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(codec="utf-8", exclude_characters="\0")))


def of_systemd(line: str) -> list[str]:
    """The words of a line as systemd.syntax(7) and systemd.service(5) read them."""
    words = []
    for found in re.finditer(r'"((?:[^"\\]|\\.)*)"(?: |$)|(\S+)', line):
        assert found[2] is None, f"bare: {found[2]}"
        raw = bytearray()
        for one in re.finditer(r"\\x([0-9a-f]{2})|\\(.)|%(%)|\$(\$)|([^%$\\])", found[1]):
            code, escaped, percent, dollar, other = one.groups()
            raw += bytes([int(code, 16)]) if code else (escaped or percent or dollar or other).encode()
        words.append(raw.decode())
    return words


def of_yaml(scalar: str) -> str:
    """A double-quoted scalar of YAML 1.2, in the escapes that are used."""
    assert scalar.startswith('"') and scalar.endswith('"') and scalar.isprintable()
    code = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))")
    return code.sub(lambda one: one[4] or chr(int(one[1] or one[2] or one[3], 16)), scalar[1:-1])


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_the_words_of_a_command_are_the_same_for_systemd(words: list[str]) -> None:
    line = " ".join(map(quoting.unit_word, words))
    assert line.isprintable()
    assert of_systemd(line) == words


@given(TEXTS)
def test_a_variable_is_one_assignment(value: str) -> None:
    written = quoting.unit_environment("A", value)
    assert written.isprintable()
    assert of_systemd(written.replace("$", "$$")) == [f"A={value}"]  # a dollar means nothing in Environment=


@given(TEXTS)
def test_a_text_is_one_scalar_of_yaml(text: str) -> None:
    assert of_yaml(quoting.yaml_text(text)) == text


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_words_are_the_same_for_a_shell(words: list[str]) -> None:
    assert shlex.split(quoting.shell_words(tuple(words))) == words


def test_a_nul_stands_in_no_word() -> None:
    for refuses in (quoting.unit_word, lambda word: quoting.shell_words((word,))):
        with pytest.raises(ValueError, match="NUL"):
            refuses("a\0b")


@pytest.mark.parametrize("name", ["A B", "", "1A", "A=B", "A\nB", "Ä"])
def test_what_is_no_variable_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a variable"):
        quoting.unit_environment(name, "x")


def test_a_unit_is_named_as_systemctl_names_it() -> None:
    assert quoting.unit_name("redis-server") == "redis-server.service"
    assert quoting.unit_name(r"a-b\x2dc@1:2.service") == r"a-b\x2dc@1:2.service"


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", "a\nb.service", ".x", "x" * 256, "$(id)", "\x1b[2J", "é"])
def test_what_is_no_unit_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="is not the name of a unit") as raised:
        quoting.unit_name(name)
    assert raised.value.hint is not None
    assert "redis-server.service" in raised.value.hint


@pytest.mark.parametrize("bad", ["a b", "a\nw /etc/shadow - - - - x", "", "$(id)", "%h", "a#b", 'a"b'])
def test_settings_are_plain_words(bad: str) -> None:
    for kind in (now, tmpfiles, tuned):
        for settings in ({bad: "1"}, {"/sys/x": bad}):
            with pytest.raises(ValueError, match="not a plain word"):
                kind(settings)
    with pytest.raises(ValueError, match="not a plain word"):
        boot((bad,))


EVIDENCE = ("Run a\nvm.nr_hugepages = 9 \\", "x --> <y/> <!-- -- \x1b[2J", "-" * 400)


@pytest.mark.parametrize("file", [now({"/sys/x": "1"}), tmpfiles({"/sys/x": "1"}), sysctl(5), boot(("a=b",))])
def test_evidence_is_comments_alone(file: object) -> None:
    from hugewise.model.policy import DeployedFile

    assert isinstance(file, DeployedFile)
    made = with_evidence(file, EVIDENCE).content
    assert made.replace("\n", "").isprintable()
    lines = made.splitlines()
    assert [line for line in lines if not line.startswith("# ")] == [
        line for line in file.content.splitlines() if not line.startswith("# ")
    ]
    assert sum(line.startswith("# ") for line in lines) >= 3
    assert not any(line.endswith("\\") for line in lines)
    assert lines[0].startswith("#!") == file.content.startswith("#!")


def test_evidence_is_a_comment_of_xml() -> None:
    found = deployed(Deployment(note=""), "k", 4096, Backing(pages="hugetlb-2m"), 4 << 20)
    (domain,) = (file for file in found.files if file.kind == "libvirt")
    made = with_evidence(domain, EVIDENCE).content
    comment, rest = made.removeprefix("<!--").split("-->", 1)
    assert "--" not in comment
    assert not comment.endswith("-")
    assert rest.strip() == domain.content.strip()
