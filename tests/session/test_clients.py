"""Which workloads have their clients on another host, and what is told where that cannot be."""

from __future__ import annotations

import msgspec
import pytest

from hugewise.errors import UserError
from hugewise.model.host import ClientHost
from hugewise.session.clients import Reached, placed
from hugewise.session.feasibility import make_plan
from hugewise.study.load import parse
from hugewise.study.study import Study, stored_digest

HOST = ClientHost(name="loads", ssh=("loads",), address="10.0.1.2")


def study(*workloads: str, more: str = "") -> Study:
    tables = "".join(f"[[workload]]\n{each}\n" for each in workloads)
    return parse(f'format = 1\nname = "s"\npolicies = ["base", "thp"]\n{more}\n{tables}', "s.toml")


def test_workloads_that_do_not_say_have_their_clients_there_if_they_can() -> None:
    asked = study(
        'name = "redis"', 'name = "memcached"\nclient = "beside"', 'name = "chase"\nparameters = { bytes = "1m" }'
    )
    assert placed(asked, None) is asked
    assert [use.client for use in placed(asked, HOST).workload] == ["apart", "beside", None]


def test_a_study_of_two_hosts_is_another_one_and_an_old_study_is_the_same() -> None:
    asked = study('name = "redis"')
    assert placed(asked, HOST).digest != asked.digest
    before = msgspec.json.decode(msgspec.json.encode(asked))
    del before["workload"][0]["client"]
    assert stored_digest(msgspec.json.encode(before)) == asked.digest


def test_what_cannot_be_is_told_with_its_cure() -> None:
    with pytest.raises(UserError, match="the client of redis is on a host of its own") as caught:
        placed(study('name = "redis"\nclient = "apart"'), None)
    assert "--client NAME" in str(caught.value.hint)
    with pytest.raises(UserError, match="no workload of it has a client"):
        placed(study('name = "chase"\nparameters = { bytes = "1m" }'), HOST)


@pytest.mark.parametrize(
    ("workload", "more", "why"),
    [
        ('name = "chase"\nclient = "apart"\nparameters = { bytes = "1m" }', "", "chase has no client"),
        ('name = "redis"\nclient = "apart"', '[design]\nkind = "interleaved"', "arms that run at once cannot meet"),
    ],
)
def test_a_cell_that_cannot_be_parted_is_left_out_with_the_reason(workload: str, more: str, why: str) -> None:
    tables = f"[[workload]]\n{workload}\n{more}\n"
    method = 'method = "sequential"' if "resident" in more else ""
    plan = make_plan(parse(f'format = 1\nname = "s"\npolicies = ["base", "thp"]\n{method}\n{tables}', "s.toml"))
    assert plan.cells == ()
    assert any(why in left.reason for left in plan.left_out), plan.left_out


def test_a_run_without_such_clients_reaches_nobody() -> None:
    asked = make_plan(study('name = "chase"\nparameters = { bytes = "1m" }'))
    for host in (None, HOST):
        reached = Reached(host)
        assert reached.open(asked, pytest.fail) == ()
        assert reached.versions == {}
        reached.close()
