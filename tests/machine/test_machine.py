"""What there is where no cgroup is."""

from __future__ import annotations

import pytest

from hugewise.errors import HugewiseError
from hugewise.machine.machine import Contained
from hugewise.model.procedure import RoleUse


def test_without_a_cgroup_nothing_is_counted_and_nothing_can_be_frozen() -> None:
    nowhere = Contained()
    assert (nowhere.procs_files, nowhere.kill(), nowhere.peak_bytes(), nowhere.used()) == ((), 0, None, RoleUse())
    with pytest.raises(HugewiseError, match="nothing can be frozen"):
        nowhere.freeze()
    with pytest.raises(HugewiseError, match="nothing can be thawed"):
        nowhere.thaw()
