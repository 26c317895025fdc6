"""What stands of each run on a page: what was asked, in which design, for how long."""

import msgspec
import pytest

from hugewise.model.design import ESTIMANDS
from hugewise.model.reason import Reason, Withheld
from hugewise.model.results import Results
from hugewise.report.document import Table
from tests.build import restated
from tests.build.results import example
from tools.results.runs import facts, measured_cells


def lines(results: Results, equivalent: str = "") -> dict[str, str]:
    found = facts("the runs", [(results, equivalent)])
    assert isinstance(found, Table)
    return {row[0]: row[1] for row in found.rows}


def test_the_command_is_the_one_that_was_kept() -> None:
    words = ("hugewise", "run", "studies/my study.toml", "--time", "4m")
    kept = msgspec.structs.replace(example(), command=words)
    assert lines(kept, "another")["command"] == "hugewise run 'studies/my study.toml' --time 4m"


def test_a_study_that_comes_with_hugewise_goes_by_its_name() -> None:
    """Of `/home/me/demo.toml` a page keeps `demo.toml`, which is no file anywhere."""
    words = ("hugewise", "run", "redhat-2021-vm.toml", "--time", "4m")
    run = msgspec.structs.replace(example(), study="redhat-2021-vm", command=words)
    told = "hugewise run redhat-2021-vm --time 4m (the run named the file redhat-2021-vm.toml)"
    assert lines(run)["command"] == told
    own = msgspec.structs.replace(run, study="own", command=("hugewise", "run", "own.toml"))
    assert lines(own)["command"] == "hugewise run own.toml"


@pytest.mark.parametrize("method", ["sequential", "fixed-n", "exact"])
def test_the_method_is_told_apart_from_the_design(method: str) -> None:
    told = lines(msgspec.structs.replace(example(), options={"method": method}))
    assert told["method"].startswith(f"{method}: ")
    assert told["design"].startswith("sequential (one arm after the other): ")
    assert lines(msgspec.structs.replace(example(), options={}))["method"] == "–"


def test_of_a_run_that_kept_none_it_is_derived_and_said_to_be() -> None:
    told = "hugewise run demo --only chase (derived from what was measured: the run kept no command)"
    assert lines(example(), "hugewise run demo --only chase")["command"] == told
    assert lines(example())["command"] == "the run kept none"


def test_each_design_stands_with_its_cells_and_its_calibration() -> None:
    results = restated.lpc()
    first, second, *_ = results.cells

    def resident(reason: Reason) -> Results:
        one = first.comparisons[0]
        said = f"{one.estimand}, {ESTIMANDS['resident']}"
        changed = msgspec.structs.replace(
            first, comparisons=(msgspec.structs.replace(one, estimand=said, design="resident", reason=reason),)
        )
        return msgspec.structs.replace(results, cells=(changed, second))

    assert lines(resident("it crossed"))["design"] == (
        "resident, which a calibration on that host allowed: it had found there what sequential pairs find:"
        f" {first.cell}; sequential (one arm after the other): {second.cell}"
    )
    withheld = lines(resident(Withheld("calibration", "a resident design must be calibrated, and it is not")))["design"]
    assert withheld.startswith("resident, without a calibration that is good, and so without verdicts: ")


def test_a_cell_is_told_once_with_the_parameters_that_are_set() -> None:
    results = restated.lpc()
    parameters = {"keys": 7_200_000, "rate": 0.0, "duration": 10.0, "memory": 2**30, "verify": False, "set_get": "1:10"}
    cell = msgspec.structs.replace(results.cells[0], workload="memcached", parameters=parameters)
    run = msgspec.structs.replace(results, cells=(cell,))
    found = measured_cells("cells", [run, run])
    assert isinstance(found, Table)
    told = "keys 7,200,000, duration 10 s, memory 1.00 GiB, set_get 1:10"
    assert found.rows == ((cell.cell, "memcached", told, "fresh"),)
    aged = msgspec.structs.replace(run, cells=(msgspec.structs.replace(cell, memory_age="fragmented"),))
    both = measured_cells("cells", [run, aged])
    assert isinstance(both, Table) and len(both.rows) == 2
