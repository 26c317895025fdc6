"""What `--priority tail` asks of a workload's metrics."""

from __future__ import annotations

import msgspec
import pytest

from hugewise.advise.question import Question, aimed, command, is_tail
from hugewise.errors import UserError

ASKED = Question(workload=command(("/bin/true",)), priority="tail")


@pytest.mark.parametrize("name", ["p99_us", "p999_us", "latency_p95_ms", "p99", "p90_ms", "latency_max_ms"])
def test_an_upper_quantile_is_known_by_its_name(name: str) -> None:
    assert is_tail(name)


@pytest.mark.parametrize("name", ["wall_s", "p50_us", "latency_p50_ms", "p9", "maximum", "tps", "lap99", "p9x_us"])
def test_what_is_none_is_not_taken_for_one(name: str) -> None:
    assert not is_tail(name)


def test_a_command_has_no_tail() -> None:
    with pytest.raises(UserError, match="no upper quantile") as caught:
        aimed(ASKED)
    assert "--value 'p99_ms,lower,ms=regex:" in (caught.value.hint or "")


def test_a_value_in_its_output_may_be_one() -> None:
    values = ("tps,higher,1/s=regex:tps ([0-9]+)", "p95_ms,lower,ms=regex:x", "p99_ms,lower,ms=regex:p99 ([0-9.]+)")
    found = aimed(msgspec.structs.replace(ASKED, workload=command(("/bin/true",), values=values)))
    assert found.workload["metric"] == "p99_ms"
    assert aimed(found) == found, "asked again, as an advice that goes on does, it is the same"


def test_a_metric_that_is_none_is_refused_by_name() -> None:
    values = ("p99_ms,lower,ms=regex:p99 ([0-9.]+)",)
    asked = msgspec.structs.replace(ASKED, workload=command(("/bin/true",), metric="wall_s", values=values))
    with pytest.raises(UserError, match="wall_s is no upper quantile") as caught:
        aimed(asked)
    assert caught.value.hint == "name one of p99_ms"


def test_of_a_server_it_is_what_its_load_tells() -> None:
    found = aimed(Question(workload={"name": "redis"}, priority="tail"))
    assert found.workload["metric"] == "p99_us"


@pytest.mark.parametrize("priority", ["speed", "memory"])
def test_other_priorities_leave_the_metric_as_it_is(priority: str) -> None:
    asked = msgspec.structs.replace(ASKED, priority=priority)
    assert aimed(asked) is asked
