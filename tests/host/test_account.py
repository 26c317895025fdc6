"""Whom programs run as: the study's user, an account without rights, who called sudo, or the caller."""

import os
import pwd
from pathlib import Path

import pytest

from hugewise import files
from hugewise.errors import UserError
from hugewise.host.local_host import account, groups, is_caller, must_enter
from hugewise.model.workload import RunsAs
from tests.requirements import need_root

ME = pwd.getpwuid(os.geteuid())
OTHER = next(entry for entry in pwd.getpwall() if entry.pw_uid != os.geteuid())


def by_sudo(monkeypatch: pytest.MonkeyPatch, uid: str = "", gid: str = "", user: str = "") -> None:
    """As sudo sets them; empty is as not set."""
    for name, value in (("SUDO_UID", uid), ("SUDO_GID", gid), ("SUDO_USER", user)):
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("user", "runs_as", "privileged", "caller", "found"),
    [
        (None, "unprivileged", True, "", pwd.getpwnam("nobody")),
        (None, "unprivileged", False, "", None),
        (None, "caller", True, str(OTHER.pw_uid), OTHER if OTHER.pw_uid else None),
        (None, "caller", True, "", None),
        (None, "caller", True, "0", None),
        (None, "caller", False, str(OTHER.pw_uid), None),
        (None, "root", True, str(OTHER.pw_uid), None),
        (OTHER.pw_name, "root", True, "", OTHER),
        (ME.pw_name, "unprivileged", False, "", None),
    ],
)
def test_the_account(  # noqa: PLR0917 (a row of the table)
    monkeypatch: pytest.MonkeyPatch,
    user: str | None,
    runs_as: RunsAs,
    privileged: bool,
    caller: str,
    found: pwd.struct_passwd | None,
) -> None:
    by_sudo(monkeypatch, uid=caller)
    assert account(user, runs_as, privileged=privileged) == found


@pytest.mark.parametrize(
    ("user", "runs_as", "privileged", "said"),
    [
        ("no such", "caller", True, "user = 'no such': no such account on this machine"),
        (OTHER.pw_name, "caller", False, f"user = '{OTHER.pw_name}': only root can run a workload as somebody else"),
        (None, "caller", True, "SUDO_UID = 4294967294: no such account to run the command as"),
        (None, "unprivileged", True, "no account `nobody` to run workloads as"),
    ],
)
def test_an_account_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, user: str | None, runs_as: RunsAs, privileged: bool, said: str
) -> None:
    by_sudo(monkeypatch, uid="4294967294")
    if runs_as == "unprivileged":
        monkeypatch.setattr("pwd.getpwnam", {}.__getitem__)
    with pytest.raises(UserError) as caught:
        account(user, runs_as, privileged=privileged)
    assert caught.value.message == said


def test_a_folder_that_an_account_cannot_enter_is_named(reached: Path) -> None:
    stranger = pwd.struct_passwd(("stranger", "x", 54_321, 54_321, "", "/", "/bin/sh"))
    folder = reached / "private" / "below"
    folder.mkdir(parents=True)
    must_enter(stranger, folder)
    (reached / "private").chmod(0o766)
    must_enter(pwd.getpwnam("root"), folder)
    with pytest.raises(UserError, match=f"as stranger, who cannot enter {reached}/private$") as raised:
        must_enter(stranger, folder)
    assert 'user = "..."' in str(raised.value.hint)


def test_who_called_is_this_account_or_that_of_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert [is_caller(None), is_caller(ME), is_caller(OTHER)] == [True, True, False]
    monkeypatch.setenv("SUDO_UID", str(OTHER.pw_uid))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert is_caller(OTHER)


DAEMON = pwd.getpwnam("daemon")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"uid": "x"}, "SUDO_UID = 'x': no number, as sudo sets it"),
        ({"uid": "-1"}, "SUDO_UID = '-1': no number, as sudo sets it"),
        ({"uid": "\u0661"}, "SUDO_UID = '\u0661': no number, as sudo sets it"),
        ({"gid": "1"}, "SUDO_UID = '': no number, as sudo sets it"),
        ({"user": "daemon"}, "SUDO_UID = '': no number, as sudo sets it"),
        ({"uid": "9" * 30}, f"SUDO_UID = {'9' * 30}: no such account to run the command as"),
        (
            {"uid": str(DAEMON.pw_uid), "user": "nobody"},
            f"SUDO_UID = {DAEMON.pw_uid} is not the account SUDO_USER = nobody",
        ),
        ({"uid": str(DAEMON.pw_uid), "user": "no-such"}, "SUDO_USER = no-such: no such account to run the command as"),
        ({"uid": str(DAEMON.pw_uid), "gid": "0"}, "SUDO_GID = 0 is no group of daemon"),
        ({"uid": str(DAEMON.pw_uid), "gid": "root"}, "SUDO_GID = 'root': no number, as sudo sets it"),
    ],
)
def test_what_sudo_cannot_have_set_is_refused(monkeypatch: pytest.MonkeyPatch, said: dict[str, str], why: str) -> None:
    by_sudo(monkeypatch, **said)
    with pytest.raises(UserError) as caught:
        account(None, "caller", privileged=True)
    assert caught.value.message == why
    assert "sudo hugewise" in (caught.value.hint or "")


def test_who_called_sudo_keeps_the_group_that_they_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getgrouplist", lambda *_: [DAEMON.pw_gid, 54_321])
    by_sudo(monkeypatch, str(DAEMON.pw_uid), "54321", "daemon")
    found = account(None, "caller", privileged=True)
    assert found is not None
    assert (found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir) == ("daemon", DAEMON.pw_uid, 54_321, DAEMON.pw_dir)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert groups(found) == (DAEMON.pw_gid, 54_321)
    assert groups(pwd.getpwnam("nobody")) == groups(None) == ()


def test_without_root_what_sudo_would_have_set_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can set a variable."""
    by_sudo(monkeypatch, str(DAEMON.pw_uid), str(DAEMON.pw_gid), "daemon")
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    assert account(None, "caller", privileged=False) is None
    assert not is_caller(DAEMON)
    assert groups(DAEMON) == ()
    assert files.caller() is None
    by_sudo(monkeypatch, "x", "y", "z")
    assert account(None, "caller", privileged=False) is None


def test_a_folder_that_a_group_of_theirs_can_enter(reached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_root()
    by_sudo(monkeypatch, str(DAEMON.pw_uid), str(DAEMON.pw_gid), "daemon")
    folder = reached / "of-a-group"
    folder.mkdir(mode=0o750)
    os.chown(folder, 0, 54_321)
    with pytest.raises(UserError, match="who cannot enter"):
        must_enter(DAEMON, folder)
    monkeypatch.setattr(os, "getgrouplist", lambda *_: [DAEMON.pw_gid, 54_321])
    must_enter(DAEMON, folder)
