"""The end of a staged attempt, and of the making of its data: nothing is left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from hugewise.attempt.service import ServiceDriver, prepared
from hugewise.errors import HugewiseError
from hugewise.host.local_machine import LocalMachine
from hugewise.host.scratch import Scratch
from hugewise.machine.machine import Contained
from hugewise.model.procedure import Data, Step
from tests.attempt.test_performance import Touching
from tests.build.studies import an_arm, cell_of


@pytest.mark.parametrize(("ending", "how"), [("dismiss", "stop"), ("close", "end")])
def test_servers_are_gone_and_folders_empty_when_an_attempt_ends(
    tmp_path: Path, ending: Literal["dismiss", "close"], how: str
) -> None:
    (tmp_path / "run").mkdir()
    did: list[str] = []
    arm = an_arm("base")
    made = ServiceDriver(
        site=cast(Any, SimpleNamespace(machine=None)), cell=cell_of(Touching("", None), arm), arm=arm,
        outputs=tmp_path, scratch=Scratch(tmp_path, None, None), sut=Contained(), client=Contained(),
    )  # fmt: skip
    made._runner = cast(Any, SimpleNamespace(stop=lambda: did.append("stop"), end=lambda: did.append("end")))
    getattr(made, ending)()
    assert did == [how]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", ["/bin/false", "/bin/true"])
def test_nothing_is_left_of_the_making_of_data(tmp_path: Path, program: str) -> None:
    did: list[str] = []

    class Group(Contained):
        def kill(self) -> int:
            did.append("kill")
            return 0

        def remove(self) -> None:
            did.append("remove")

    scratch = Scratch(tmp_path / "scratch", None, None)
    scratch.path.mkdir()
    (tmp_path / "results").mkdir()
    data = Data(name="made", key={}, recipe=lambda _: (Step(name="step", argv=(program,)),))
    workload = cast(Any, SimpleNamespace(ports=0))
    places = (LocalMachine(), tmp_path / "results", scratch, None)
    if program == "/bin/false":
        with pytest.raises(HugewiseError, match="made cannot be made"):
            prepared(workload, data, *places, lambda _: Group(), lambda _: None)
    else:
        prepared(workload, data, *places, lambda _: Group(), lambda _: None)
    assert did[-2:] == ["kill", "remove"]
    assert list(scratch.path.iterdir()) == []
