"""What an engine does with an order on its host, with a small program in the place of sudo."""

import os
from pathlib import Path

import pytest

from hugewise.fleet import engine, host_agent, protocol
from hugewise.fleet.protocol import (
    Assignment,
    AssignmentSeen,
    HostAnswer,
    HostContext,
    LookOrder,
    Refusal,
    default_spool,
)
from tests.build import known

LOOK = LookOrder(assignment=Assignment("f", 1))
UNKNOWN = AssignmentSeen(assignment=Assignment("f", 1), state="unknown")


@pytest.fixture
def sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its script; the worker is no root."""
    path = tmp_path / "programs" / "sudo"
    path.parent.mkdir()
    path.touch(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return path


def delivered(*, root: bool = True, folder: Path | None = None) -> HostAnswer:
    data = protocol.encode(LOOK)
    named = None if folder is None else str(folder)
    return protocol.decode_answer(
        engine.answer_as_worker(data, installation="/opt/hugewise", spool_folder=named, root=root)
    )


def test_an_order_to_root_is_obeyed_by_a_program_of_its_own(sudo: Path, tmp_path: Path) -> None:
    (tmp_path / "answer").write_bytes(protocol.encode(UNKNOWN))
    sudo.write_text(f'#!/bin/sh\necho "told: $*" > {tmp_path}/words; cat > {tmp_path}/order; cat {tmp_path}/answer\n')
    assert delivered(folder=tmp_path / "spool") == UNKNOWN
    words = f"told: -n -- /opt/hugewise/bin/hugewise fleet obey --spool {tmp_path}/spool\n"
    assert (tmp_path / "words").read_text() == words
    assert protocol.decode_order((tmp_path / "order").read_bytes()) == LOOK


@pytest.mark.parametrize(("root", "account"), [(False, 1000), (True, 0)])
def test_a_worker_that_need_not_become_root_obeys_itself(
    sudo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: bool, account: int
) -> None:
    sudo.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    places: list[HostContext] = []

    def answered(data: bytes, place: HostContext) -> bytes:
        assert protocol.decode_order(data) == LOOK
        places.append(place)
        return protocol.encode(UNKNOWN)

    monkeypatch.setattr(host_agent, "answer_order", answered)
    monkeypatch.setattr(os, "geteuid", lambda: account)
    assert delivered(root=root, folder=tmp_path) == UNKNOWN
    assert delivered(root=root) == UNKNOWN
    assert places == [HostContext(tmp_path), HostContext(default_spool())]
    assert not (tmp_path / "asked").exists()


def test_a_sudo_that_asks_for_a_password_is_a_refusal_with_its_cure(sudo: Path) -> None:
    sudo.write_text("#!/bin/sh\necho 'sudo: a password is required' >&2; exit 1\n")
    answer = delivered()
    assert isinstance(answer, Refusal)
    assert answer.why == "hugewise as root by `sudo -n`: sudo: a password is required"
    assert known(answer.hint).startswith("have sudo let this account call hugewise there without a password")
    assert "makes the account root there" in known(answer.hint)


def test_a_program_that_does_not_answer_or_is_not_there_is_a_refusal(
    sudo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_PATIENCE_S", 0.0)
    sudo.write_text("#!/bin/sh\nexec sleep 60\n")
    assert delivered() == Refusal(why="no answer within 0 s (sudo)")
    sudo.unlink()
    monkeypatch.setenv("PATH", str(sudo.parent))
    assert delivered() == Refusal(why="sudo cannot be started: No such file or directory")
