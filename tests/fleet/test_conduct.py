"""A fleet before it is begun: who answers, fits and measures, how many hosts a question takes; then a whole one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import pytest

import hugewise
from hugewise.errors import HostLostError, UserError
from hugewise.fleet import conduct, inventory, protocol
from hugewise.fleet.conduct import GatheredHost, HostProblem
from hugewise.fleet.engine import run_command
from hugewise.fleet.folder import status_lines
from hugewise.fleet.inventory import Inventory, parse
from hugewise.fleet.protocol import (
    THIS,
    Examined,
    FleetQuestion,
    Greeting,
    HelloOrder,
    HostAnswer,
    HostOrder,
    Installed,
    installed,
)
from hugewise.model.host import Check
from hugewise.study.load import parse as study_of

HERE = Installed(
    version="0.1.0", package="a" * 64, probe="b" * 64, probe_version="0.1.0", python="3.11", machine="x86_64"
)
CELLS = ("chase: thp against base",)
GREETING = Greeting(
    installed=HERE,
    account="root",
    root=True,
    fingerprint={"name": "a", "machine": "m-a"},
    examined=Examined(mechanism="system", cells=CELLS),
)
QUESTION = FleetQuestion(text="x")
HOSTS = parse("".join(f'[[host]]\nname = "{name}"\nssh = "{name}"\nroot = true\n' for name in "abc"), "hosts.toml")

NO_PMU = Check("machine", "counters", "limited", "no PMU\a", "another machine")
FINE = Check("machine", "memory", "ok", "FINE", None)


class Answering:
    """An engine whose hosts answer what is set down."""

    def __init__(self, **answers: Greeting | Exception) -> None:
        self.answers = answers

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def present(self) -> frozenset[str]:
        return frozenset(self.answers)

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        assert isinstance(order, HelloOrder)
        found = self.answers.get(host, HostLostError(f"{host}: no worker is registered"))
        if isinstance(found, Exception):
            raise found
        return found


def told(**answers: Greeting | Exception) -> list[HostProblem]:
    own = {
        name: changed_of(found, fingerprint={"name": name, "machine": f"m-{name}"})
        for name, found in (dict.fromkeys("abc", GREETING) | answers).items()
    }
    found = conduct.greet_hosts(Answering(**own), dict.fromkeys("abc", QUESTION))
    return conduct.problems(found, HOSTS, HERE, question=True)


def changed_of(found: Greeting | Exception, **fields: object) -> Greeting | Exception:
    return msgspec.structs.replace(found, **fields) if isinstance(found, Greeting) else found


def changed(**fields: object) -> Greeting:
    return msgspec.structs.replace(GREETING, **fields)


def examined(**fields: object) -> Greeting:
    return changed(examined=msgspec.structs.replace(GREETING.examined, **fields))


def test_what_fits_is_no_problem() -> None:
    assert told() == []


@pytest.mark.parametrize(
    ("answer", "why", "cure"),
    [
        (HostLostError("b: ssh b: No route to host", hint="try: ssh b true"), "No route to host", "ssh b true"),
        (changed(installed=msgspec.structs.replace(HERE, version="0.2.0")), "hugewise 0.2.0 is there", "provision"),
        (changed(installed=msgspec.structs.replace(HERE, package="c" * 64)), "with other files than here", "provision"),
        (changed(installed=msgspec.structs.replace(HERE, probe=None)), "has no probe", "provision"),
        (
            changed(installed=msgspec.structs.replace(HERE, probe="d" * 64)),
            "another one than on the other hosts",
            "wheel",
        ),
        (changed(root=False, account="me"), "is to run as root, and runs as me", "root = false"),
        (examined(error="hugewise doctor failed: no probe"), "no probe", "hugewise doctor"),
        (examined(cells=(), left_out=("pgbench, *: not there",), install="apt install x"), "pgbench", "apt install x"),
        (examined(mechanism="process"), "as an ordinary user there, and as root on other hosts", "for none"),
        (examined(cells=("chase: mthp-64k against base",)), "not there: chase: thp against base", "--only"),
    ],
)
def test_what_keeps_a_host_from_taking_part(answer: Greeting | Exception, why: str, cure: str) -> None:
    (found,) = told(b=answer)
    assert found.host == "b"
    assert why in found.why
    assert cure in (found.cure or "")


def doctor(*, asked: bool, **answers: Greeting | Exception) -> tuple[bool, list[str]]:
    """Whether all hosts can take part, and what `hugewise fleet doctor` says."""
    own = {
        name: changed_of(found, fingerprint={"name": name, "machine": f"m-{name}"}, installed=installed())
        for name, found in (dict.fromkeys("abc", GREETING) | answers).items()
    }
    study = study_of('format = 1\nname = "s"\npolicies = ["base", "thp"]\n[[workload]]\nname = "chase"\n', "s.toml")
    lines: list[str] = []
    wanted = conduct.AskedStudy(QUESTION, study) if asked else None
    return conduct.print_examination(HOSTS, wanted, lines.append, connect=lambda *_: Answering(**own)), lines


def test_every_host_that_is_asked_a_question_says_what_runs_and_what_is_left_out() -> None:
    left = examined(left_out=("pgbench, *: not there",), checks=(NO_PMU,))
    fits, output = doctor(asked=True, b=msgspec.structs.replace(left, spool_free=5 << 20))
    at = next(number for number, line in enumerate(output) if line.startswith("b: hugewise "))
    assert output[at].startswith(f"b: hugewise {installed().version} as root; ")
    assert output[at + 1 : at + 4] == [
        "  runs      chase: thp against base",
        "  left out  pgbench, *: not there",
        "  limited   room for runs: 5 MiB are free in its spool",
    ]
    assert output[-1] == "3 of 3 hosts can take part"
    assert fits


def test_without_a_question_what_a_host_lacks_is_said_with_its_cure_and_control_characters_are_not() -> None:
    fits, output = doctor(asked=False, a=examined(checks=(NO_PMU, FINE)), c=HostLostError("c: ssh c: \033[1mgone"))
    assert "  limited   machine, counters: no PMU\N{REPLACEMENT CHARACTER} (cure: another machine)" in output
    assert not any("FINE" in line or "\033" in line for line in output)
    assert output[-2].startswith("c: ")
    assert output[-1] == "2 of 3 hosts can take part"
    assert not fits


def test_one_machine_is_one_host() -> None:
    (found,) = conduct.problems({name: gathered(name) for name in "ab"}, HOSTS, HERE, question=False)
    assert (found.host, found.why) == ("b", "it is the same machine as a: one machine is one host of the sample")


def test_all_of_it_is_told_at_once_and_nothing_is_begun() -> None:
    problems = told(a=HostLostError("a: gone"), c=changed(root=False))
    with pytest.raises(UserError) as raised:
        conduct.refuse_problems(problems, 3)
    assert raised.value.exit_code == 2
    assert "2 of 3 hosts cannot take part; nothing was begun" in raised.value.message
    assert "a: a: gone" in raised.value.message and "c: it is to run as root" in raised.value.message


def gathered(host: str, **fields: object) -> GatheredHost:
    greeting = changed(**fields)
    return GatheredHost(host, greeting, inventory.stratum(greeting.fingerprint, {}, greeting.memory_age))


def test_the_plan_says_strata_and_host_hours() -> None:
    hosts = [gathered("a"), gathered("b"), gathered("c", memory_age="aged")]
    study = study_of(
        'format = 1\nname = "s"\npolicies = ["base", "thp"]\nbudget = { time = "2h" }\n[[workload]]\nname = "chase"\n',
        "s",
    )
    lines = list(conduct.plan_lines(hosts, study, HOSTS))
    assert lines[0] == "3 hosts in 2 strata"
    assert any("memory: " in line and "aged" in line for line in lines)
    assert "3 hosts x 2 h 00 min at most = 6 host-hours, after a check of 20 blocks on each host" in lines


STUDY = """
format = 1
name = "tiny"
policies = ["base", "as-is"]
method = "sequential"
budget = { blocks = 4 }

[[workload]]
name = "chase"
parameters = { bytes = "8m", loads = 20000 }
"""
LOCAL_HOSTS = """
[fleet]
look = "0.5s"
check = 6

[[host]]
name = "alpha"
ssh = "alpha"
spool = "{spool}"
root = {root}
"""


class Alone:
    """An engine whose hosts are this one."""

    def __init__(self, hosts: Inventory, fleet: str, tell: Callable[[str], None]) -> None:
        del fleet, tell
        self.hosts = hosts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def present(self) -> frozenset[str]:
        return frozenset(host.name for host in self.hosts.host)

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        words = [*THIS, "fleet", "obey", "--spool", str(self.hosts.spool(self.hosts.entry(host)))]
        output = run_command(words, protocol.encode(order), timeout=timeout, most=protocol.MOST_MESSAGE)
        assert output.status == 0, output.errors
        return protocol.decode_answer(output.stdout)


def begun(tmp_path: Path, study: str, root: bool) -> tuple[conduct.AskedStudy, Inventory, str]:
    (tmp_path / "tiny.toml").write_text(study)
    text = LOCAL_HOSTS.format(spool=tmp_path / "spool", root=str(root).lower())
    wanted = conduct.question_of(tmp_path / "tiny.toml", scale=None, only=None, arms=None, time_=None)
    return wanted, inventory.parse(text, "hosts.toml"), text


@pytest.mark.usefixtures("unchanged")
def test_a_study_from_its_question_to_a_run_that_is_whole_here(tmp_path: Path) -> None:
    wanted, hosts, text = begun(tmp_path, STUDY, os.geteuid() == 0)
    lines: list[str] = []
    folder, state = conduct.begin(wanted, hosts, text, tmp_path / "results", lines.append, connect=Alone)
    assert folder is not None and state is not None
    assert state.closed is not None and state.closed.reason == "1 of 1 hosts have measured", lines
    (work,) = state.counted()
    assert work.shipped is not None and work.settled is not None and work.settled.state == "ended"
    results = hugewise.open_results(folder.path / work.shipped.folder)
    assert results.state == "finished" and results.blocks_complete == 4
    assert results.integrity is not None and results.integrity.state == "consistent"
    assert (folder.path / work.shipped.folder / "report.html").is_file()
    assert [path.name for path in (tmp_path / "spool" / folder.fleet).iterdir() if path.is_dir()] == []
    assert "alpha: the check passed" in lines
    assert any("1 hosts in 1 stratum" in line for line in lines)
    assert "alpha: study brought: hosts/alpha/" in "\n".join(status_lines(folder.path))


def test_what_cannot_run_there_is_told_before_anything_is_begun(tmp_path: Path) -> None:
    study = STUDY.replace('"base", "as-is"', '"as-is", "again"').replace(
        "policies = ", 'baseline = "as-is"\npolicies = '
    )
    study = study.replace('"again"]', '{ name = "again", from = "hugetlb-1g" }]').replace('"8m"', '"64t"')
    wanted, hosts, text = begun(tmp_path, study, os.geteuid() == 0)
    with pytest.raises(UserError) as raised:
        conduct.begin(wanted, hosts, text, tmp_path / "results", lambda _: None, connect=Alone)
    assert "1 of 1 hosts cannot take part; nothing was begun" in raised.value.message
    assert "nothing of the study can run there" in raised.value.message
    assert not (tmp_path / "results").exists()
