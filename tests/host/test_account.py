"""Whom programs run as: the study's user, an account without rights, who called sudo, or the caller."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from hugewise.errors import UserError
from hugewise.host.account import account, is_caller, must_enter
from hugewise.model.workload import RunsAs

ME = pwd.getpwuid(os.geteuid())
OTHER = next(entry for entry in pwd.getpwall() if entry.pw_uid != os.geteuid())


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
    monkeypatch.setenv("SUDO_UID", caller)
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
    monkeypatch.setenv("SUDO_UID", "4294967294")
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
    assert is_caller(OTHER)
