"""What an idle worker takes: in seconds here, over ten minutes in `make bench`."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest
from bench import quiet

from hugewise.fleet.orders import AssignmentSeen, LookOrder
from tests.fleet.dask.local import NOWHERE, Local


def test_an_idle_worker_is_quiet_and_bound_to_its_cpu(tmp_path: Path) -> None:
    """Far below what Dask's own settings take, 1.3% of a core and 85 wake-ups a second; orders may run anywhere."""
    cpu = max(os.sched_getaffinity(0))
    local = Local(tmp_path, cpu=cpu)
    with local.up() as engine:
        pid = local.worker("alpha")
        assert engine.call("alpha", LookOrder(assignment=NOWHERE)) == AssignmentSeen(
            assignment=NOWHERE, state="unknown"
        )
        for task in Path(f"/proc/{pid}/task").iterdir():
            assert os.sched_getaffinity(int(task.name)) == {cpu}
        time.sleep(1)
        core, woken = quiet.share(pid, 10)
    assert core <= 0.003
    assert woken <= 5


def test_the_interval_of_pairs() -> None:
    ratio, low, high = quiet.interval([1.01, 0.99, 1.02, 1.0])
    assert low < ratio < high
    assert ratio == pytest.approx(math.prod([1.01, 0.99, 1.02, 1.0]) ** 0.25)
    told = quiet.show((0.0012, 2.0), [1.01, 0.99, 1.02, 1.0], 600)
    assert "over 600 s, TLS on: 0.120% of a core" in told
    assert "target at most 0.3% of a core -> met" in told
    assert "MISSED" in quiet.show((0.004, 2.0), [1.01, 0.99], 600)
