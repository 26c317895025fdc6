"""Messages between coordinator and hosts: what comes is a value within its bounds, or refused."""

from pathlib import Path

import pytest

from hugewise.fleet import host_agent, protocol
from hugewise.fleet.protocol import (
    Assignment,
    FileEntry,
    HostContext,
    LookOrder,
    ManifestFound,
    ReadOrder,
    Refusal,
)
from hugewise.reading import UnreadableError

ONE = Assignment("f-1", 1)
ZERO = "0" * 64


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[" * 10_000,
        b'{"order":"begin"}',
        b'{"order":"burn","assignment":{"fleet":"f","number":1}}',
        b'{"order":"look","assignment":{"fleet":"../f","number":1}}',
        b'{"order":"look","assignment":{"fleet":".hidden","number":1}}',
        b'{"order":"look","assignment":{"fleet":"f","number":0}}',
        b'{"order":"look","assignment":{"fleet":"f","number":99999999999}}',
        b'{"order":"read","assignment":{"fleet":"f","number":1},"offset":0,"size":99999999}',
        b'{"order":"read","assignment":{"fleet":"f","number":1},"offset":-1,"size":1}',
        b'{"order":"begin","assignment":{"fleet":"f","number":1},"question":{"text":"x","directory":"tmp"}}',
    ],
)
def test_what_is_no_order_is_refused(said: bytes, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError):
        protocol.decode_order(said)
    answer = protocol.decode_answer(host_agent.answer_order(said, HostContext(tmp_path / "spool")))
    assert isinstance(answer, Refusal)
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize(
    "name",
    [
        "../seed",
        "/etc/passwd",
        "a/../b",
        "a//b",
        "",
        ".hidden",
        "a/.b",
        "a\n",
        "a\0",
        "-rf",
        "a/b/c/d/e/f/g/h/i",
        "x" * 401,
    ],
)
def test_a_manifest_names_nothing_that_leads_elsewhere(name: str) -> None:
    assert not protocol.safe_file(name)
    said = protocol.encode(ManifestFound(assignment=ONE, run="r", files=(FileEntry("a", 1, ZERO),)))
    import msgspec

    changed = said.replace(b'"name":"a"', b'"name":' + msgspec.json.encode(name))
    with pytest.raises(UnreadableError):
        protocol.decode_answer(changed)


@pytest.mark.parametrize("run", ["r\n", "r/../x", ".r", ""])
def test_a_run_of_a_manifest_is_one_plain_name(run: str) -> None:
    files = (FileEntry("a", 1, ZERO),)
    with pytest.raises(UnreadableError):
        protocol.decode_answer(protocol.encode(ManifestFound(assignment=ONE, run=run, files=files)))


def test_a_message_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MOST_MESSAGE", 10)
    with pytest.raises(UnreadableError, match="more than 10 bytes"):
        protocol.decode_order(protocol.encode(LookOrder(assignment=ONE)))


def test_a_host_says_only_so_much_of_itself() -> None:
    from tests.fleet.test_conduct import GREETING

    assert protocol.decode_answer(protocol.encode(GREETING)) == GREETING
    import msgspec

    long = msgspec.structs.replace(GREETING, thp={"x": "y" * protocol.MOST_GREETING})
    with pytest.raises(UnreadableError, match="of itself"):
        protocol.decode_answer(protocol.encode(long))


def test_a_spool_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir(mode=0o755)
    (tmp_path / "spool").chmod(0o755)
    answer = protocol.decode_answer(
        host_agent.answer_order(protocol.encode(LookOrder(assignment=ONE)), HostContext(tmp_path / "spool"))
    )
    assert isinstance(answer, Refusal)
    assert "this account alone can enter" in answer.why and "chmod 700" in (answer.hint or "")


def test_of_what_was_never_begun_nothing_is_there(tmp_path: Path) -> None:
    def ask(order: protocol.HostOrder) -> protocol.HostAnswer:
        return protocol.decode_answer(host_agent.answer_order(protocol.encode(order), HostContext(tmp_path / "spool")))

    assert ask(LookOrder(assignment=ONE)) == protocol.AssignmentSeen(assignment=ONE, state="unknown")
    assert isinstance(ask(ReadOrder(assignment=ONE, offset=0, size=1)), Refusal)
    assert ask(protocol.ForgetOrder(assignment=ONE)) == ask(protocol.EndOrder(assignment=ONE)) == protocol.Done()
