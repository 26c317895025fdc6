"""Who goes on after a screening, and when somebody is measured beside the chosen one."""

import msgspec
import pytest

from hugewise.advise.advice import Advice
from hugewise.advise.advise import runner_up_of
from hugewise.advise.pilot import ProgramAsIs
from tests.advise.test_advice import SCREENED, found

PILOT = ProgramAsIs(
    runs=6, wall_s=1.0, block_s=2.0, sd=0.02, coverage={}, memory=1 << 20, faults=None, same_output=None
)


def advice(runner_up: str) -> Advice:
    return found(confirmed=None, screen=msgspec.structs.replace(SCREENED, runner_up=runner_up))


@pytest.mark.parametrize(("seconds", "who"), [(600.0, "pool-2m"), (100.0, "pool-2m"), (60.0, ""), (1.0, "")])
def test_the_runner_up_is_measured_where_the_time_allows(seconds: float, who: str) -> None:
    """Of 2 s a block of two: 100 s hold 33 blocks of three attempts, and a verdict at 99% takes 12 pairs."""
    assert runner_up_of(advice("pool-2m"), PILOT, seconds) == who


def test_where_there_is_no_runner_up_nobody_is() -> None:
    assert runner_up_of(advice(""), PILOT, 600.0) == ""
    assert runner_up_of(found(screen=None), PILOT, 600.0) == ""
