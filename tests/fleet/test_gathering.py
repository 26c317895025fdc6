"""Before anything is begun: what does not fit is told, all of it, with its cure."""

from __future__ import annotations

import msgspec
import pytest

from hugewise.errors import HostLostError, UserError
from hugewise.fleet import conduct, gathering, inventory
from hugewise.fleet.gathering import GatheredHost, HostProblem
from hugewise.fleet.installation import installed
from hugewise.fleet.inventory import parse
from hugewise.fleet.protocol import Examined, FleetQuestion, Greeting, HelloOrder, HostAnswer, HostOrder, Installed
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
    clock=1000.0,
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
    found = gathering.greeted(Answering(**own), dict.fromkeys("abc", QUESTION))
    return gathering.problems(found, HOSTS, HERE, question=True)


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
    said: list[str] = []
    wanted = conduct.Asked(QUESTION, study) if asked else None
    return conduct.print_examination(HOSTS, wanted, said.append, connect=lambda *_: Answering(**own)), said


def test_every_host_that_is_asked_a_question_says_what_runs_and_what_is_left_out() -> None:
    left = examined(left_out=("pgbench, *: not there",), checks=(NO_PMU,))
    fits, said = doctor(asked=True, b=msgspec.structs.replace(left, spool_free=5 << 20, clock=0.0))
    at = next(number for number, line in enumerate(said) if line.startswith("b: hugewise "))
    assert said[at].startswith(f"b: hugewise {installed().version} as root; ")
    assert said[at + 1 : at + 4] == [
        "  runs      chase: thp against base",
        "  left out  pgbench, *: not there",
        "  limited   room for runs: 5 MiB are free in its spool",
    ]
    assert said[-1] == "3 of 3 hosts can take part"
    assert fits


def test_without_a_question_what_a_host_lacks_is_said_with_its_cure_and_control_characters_are_not() -> None:
    fits, said = doctor(asked=False, a=examined(checks=(NO_PMU, FINE)), c=HostLostError("c: ssh c: \033[1mgone"))
    assert "  limited   machine, counters: no PMU\N{REPLACEMENT CHARACTER} (cure: another machine)" in said
    assert not any("FINE" in line or "\033" in line for line in said)
    assert said[-2].startswith("c: ")
    assert said[-1] == "2 of 3 hosts can take part"
    assert not fits


def test_one_machine_is_one_host() -> None:
    text = "".join(f'[[host]]\nname = "{name}"\nssh = "{name}"\n' for name in "ab")
    trial = parse(f"[fleet]\nsame_machine = true\n{text}", "hosts.toml")
    both = {name: gathered(name) for name in "ab"}
    assert gathering.problems(both, trial, HERE, question=False) == []
    (found,) = gathering.problems(both, parse(text, "hosts.toml"), HERE, question=False)
    assert (found.host, found.why) == ("b", "it is the same machine as a: one machine is one host of the sample")
    assert "same_machine = true" in (found.cure or "")


def test_all_of_it_is_told_at_once_and_nothing_is_begun() -> None:
    problems = told(a=HostLostError("a: gone"), c=changed(root=False))
    with pytest.raises(UserError) as raised:
        gathering.must_fit(problems, 3)
    assert raised.value.exit_code == 2
    assert "2 of 3 hosts cannot take part; nothing was begun" in raised.value.message
    assert "a: a: gone" in raised.value.message and "c: it is to run as root" in raised.value.message


def test_a_host_that_is_not_connected_is_a_problem() -> None:
    found = gathering.greeted(Answering(a=GREETING), dict.fromkeys("ab"))
    assert isinstance(found["a"], GatheredHost)
    assert isinstance(found["b"], HostProblem) and "no worker is registered" in found["b"].why


def gathered(host: str, **fields: object) -> GatheredHost:
    greeting = changed(**fields)
    return GatheredHost(host, greeting, inventory.stratum(greeting.fingerprint, {}, greeting.memory_age))


def test_clocks_and_one_machine_are_remarks() -> None:
    found = gathering.remarks([gathered("a"), gathered("b", clock=4600.0)], 1000.0)
    assert found == ["b: its clock is 3600 s ahead; nothing rests on it", "a and b are one machine"]


def test_of_each_stratum_so_many_measure() -> None:
    hosts = [gathered("a"), gathered("b"), gathered("c", memory_age="aged")]
    assert gathering.placed(hosts, None, 0.0, "x").measuring == ("a", "b", "c")
    drawn = {gathering.placed(hosts, 1, 0.0, str(seed)) for seed in range(20)}
    assert {(stood.measuring, stood.spare) for stood in drawn} == {(("a", "c"), ("b",)), (("b", "c"), ("a",))}


def test_the_plan_says_strata_and_host_hours() -> None:
    hosts = [gathered("a"), gathered("b"), gathered("c", memory_age="aged")]
    study = study_of(
        'format = 1\nname = "s"\npolicies = ["base", "thp"]\nbudget = { time = "2h" }\n[[workload]]\nname = "chase"\n',
        "s",
    )
    lines = list(conduct.planned(hosts, gathering.placed(hosts, 1, 0.0, "x"), study, HOSTS))
    assert lines[0] == "3 hosts in 2 strata"
    assert "(1 more stand by)" in "\n".join(lines)
    assert any("memory: " in line and "aged" in line for line in lines)
    assert "2 hosts x 2 h 00 min at most = 4 host-hours, after a check of 20 blocks on each host" in lines
