"""Values of parameters that stored runs have and no workload of today, and the other way round."""

from hugewise.model.workload import ParameterValue, without_defaults


def test_a_parameter_that_is_gone_makes_a_run_no_other_one() -> None:
    old: dict[str, ParameterValue] = {
        "warehouses": 2,
        "seed": 1,
        "sysbench_tpcc": "",
        "clips": (),
        "client": "probe",
        "tune": False,
    }
    assert without_defaults(old) == without_defaults({"warehouses": 2})
    assert without_defaults({"seed": 2}) == {"seed": 2}
    assert without_defaults({"off": 0, "on": True}) == {"off": 0, "on": True}
