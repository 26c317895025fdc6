"""In what the keys of a study must agree: each mistake names its key, where it stands, and the cure."""

from __future__ import annotations

from typing import Any

import pytest

from hugewise.errors import StudyError
from hugewise.study.load import read

STUDY: dict[str, Any] = {
    "format": 1,
    "name": "s",
    "policies": ["base", "thp"],
    "workload": [{"name": "chase"}],
}


@pytest.mark.parametrize(
    ("change", "key", "said", "hint"),
    [
        ({"end_points": ["mean"]}, "end_points", "cannot be judged by the method fixed-n", "sequential"),
        ({"covariate": "canary"}, "covariate", "has no part in the method fixed-n", "sequential"),
        ({"design": {"kind": "duet", "slots": [0]}}, "design.slots", "needs a CPU for each arm", "[0, 1]"),
        ({"design": {"slots": [0, 0]}}, "design.slots[2]", "CPU 0 is in two slots", "remove it"),
        ({"design": {"slots": ["0-1", "1,2"]}}, "design.slots[2]", "CPU 1 is in two slots", "remove it"),
        (
            {"scales": {"large": {"design": {"slots": [3, 3]}}}},
            "scales.large.design.slots[2]",
            "CPU 3 is in two slots",
            "remove it",
        ),
        (
            {"workload": [{"name": "chase", "scales": {"large": {"workload": {"policies": ["thp", "base", "thp"]}}}}]},
            "workload[1].scales.large.workload.policies[3]",
            "stands twice",
            "remove one",
        ),
        (
            {"policies": ["base", "thp", "mthp-64k"], "workload": [{"name": "chase", "policies": ["thp", "mthp-64k"]}]},
            "workload[1].policies",
            "lacks the baseline",
            'add "base"',
        ),
    ],
)
def test_keys_that_do_not_agree_are_named_with_the_cure(change: dict[str, Any], key: str, said: str, hint: str) -> None:
    with pytest.raises(StudyError) as error:
        read(STUDY | change, "s.toml")
    assert error.value.key == key
    assert said in error.value.message
    assert hint in (error.value.hint or "")


def test_end_points_and_covariate_are_of_the_sequential_method() -> None:
    found = read(STUDY | {"method": "sequential", "end_points": ["mean"], "covariate": "canary"}, "s.toml")
    assert (found.end_points, found.covariate) == (("mean",), "canary")
