"""What tests are made from: small functions and fakes with defaults, so that a test says only what matters to it.

    trials     one attempt, its delivery, blocks of attempts, and a fixed-n method that has seen them
    results    the results of a rich run: every verdict, nulls, failures and hostile names
    restated   results beside published figures
    booted     results of arms that ran in guests
    few_blocks  results of two blocks, whose intervals reach beyond everything; and cells like the demo's
    studies    policies and workloads that do nothing, and TOML of Python values
    workloads  the arguments that a workload's functions take: parameters, treatments, what an attempt said
    calibrations  streams of pairs
    hosts      machines in a dictionary: files alone, or with the manners of sysfs
    guests     guests that are not booted, and the far end of an agent's channel (`agents`)

`attempt("thp", 9.0, block=3, state="failed")`, `block(3, {"base": 10.0, "thp": 9.0})`: whatever is not named is as in a
run where nothing went wrong.
"""

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """The value, which is not None."""
    assert value is not None
    return value
