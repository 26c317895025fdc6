"""A fleet of one host that measures for real: each order is a program of its own, as over ssh, without ssh."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

import hugewise
from hugewise.errors import UserError
from hugewise.fleet import conduct, inventory, protocol, status
from hugewise.fleet.engine import talked
from hugewise.fleet.installation import THIS
from hugewise.fleet.inventory import Inventory
from hugewise.fleet.protocol import HostAnswer, HostOrder

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
HOSTS = """
[fleet]
look = "0.5s"
check = 6

[[host]]
name = "alpha"
ssh = "alpha"
spool = "{spool}"
labels = {{ rack = "r1" }}
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
        found = talked(words, protocol.encode(order), timeout=timeout, most=protocol.MOST_MESSAGE)
        assert found.status == 0, found.errors
        return protocol.decode_answer(found.said)


def begun(tmp_path: Path, study: str, root: bool) -> tuple[conduct.Asked, Inventory, str]:
    (tmp_path / "tiny.toml").write_text(study)
    text = HOSTS.format(spool=tmp_path / "spool", root=str(root).lower())
    wanted = conduct.question_of(tmp_path / "tiny.toml", scale=None, only=None, arms=None, time_=None)
    return wanted, inventory.parse(text, "hosts.toml"), text


@pytest.mark.usefixtures("unchanged")
def test_a_study_from_its_question_to_a_run_that_is_whole_here(tmp_path: Path) -> None:
    wanted, hosts, text = begun(tmp_path, STUDY, os.geteuid() == 0)
    said: list[str] = []
    folder, state = conduct.begin(wanted, hosts, text, tmp_path / "results", said.append, connect=Alone)
    assert folder is not None and state is not None
    assert state.closed is not None and state.closed.reason == "1 of 1 hosts have measured", said
    (work,) = state.counted()
    assert work.shipped is not None and work.settled is not None and work.settled.state == "ended"
    found = hugewise.open_results(folder.path / work.shipped.folder)
    assert found.state == "finished" and found.blocks_complete == 4
    assert found.integrity is not None and found.integrity.state == "consistent"
    assert (folder.path / work.shipped.folder / "report.html").is_file()
    assert work.settled.cost.orders >= 2 and work.settled.cost.orders_s > 0
    assert work.settled.cost.worker_s is None
    assert [path.name for path in (tmp_path / "spool" / folder.fleet).iterdir() if path.is_dir()] == []
    assert "alpha: the check passed" in said
    assert any("1 hosts in 1 stratum" in line for line in said)
    assert "alpha: study brought: hosts/alpha/" in "\n".join(status.lines(folder.path))


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
