"""The key memory_age: how it is written, and what it must agree with."""

from typing import Any

import pytest

from hugewise.errors import StudyError
from hugewise.study.load import read
from tests.build.studies import study_data, study_of


def chase(**keys: Any) -> list[dict[str, Any]]:
    return [{"name": "chase", **keys}]


def error_of(**keys: Any) -> StudyError:
    with pytest.raises(StudyError) as caught:
        study_of(**keys)
    return caught.value


def test_one_age_or_a_list_of_them() -> None:
    assert study_of().workload[0].memory_age == ("fresh",)
    assert study_of(workload=chase(memory_age="fragmented")).workload[0].memory_age == ("fragmented",)
    both = study_of(workload=chase(memory_age=["fresh", "pressure"], memory="1g")).workload[0]
    assert (both.memory_age, both.memory) == (("fresh", "pressure"), 1 << 30)


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ({"memory_age": "old"}, "workload[1].memory_age", "choices: fragmented"),
        ({"memory_age": []}, "workload[1].memory_age", "at least 1 item"),
        ({"memory_age": ["fresh", "fresh"]}, "workload[1].memory_age[2]", "stands twice"),
        ({"memory_age": "pressure"}, "workload[1].memory_age", 'add: memory = "512m"'),
        ({"memory_age": ["fresh", "fragmented+pressure"]}, "workload[1].memory_age", "limit that makes"),
    ],
)
def test_a_mistake_is_told_with_its_cure(keys: dict[str, Any], key: str, words: str) -> None:
    found = error_of(workload=chase(**keys))
    assert found.key == key
    assert words in f"{found.message} {found.hint}"


def test_pages_are_no_condition_in_aged_memory() -> None:
    thp = {"name": "thp", "judged": "backing"}
    found = error_of(policies=["base", thp], workload=chase(memory_age=["fresh", "fragmented"]))
    assert found.key == "policies[2].judged"
    assert "would choose the attempts with luck" in found.message
    assert 'write judged = "setting"' in (found.hint or "")
    # It is one where memory is fresh, and for an arm that the aged workload has not.
    study_of(policies=["base", thp], workload=chase())
    other = {"name": "gups", "memory_age": "fragmented", "policies": ["base", "mthp-64k"]}
    study_of(policies=["base", thp, "mthp-64k"], workload=[*chase(), other])


def test_the_memory_of_guests_is_not_this_hosts() -> None:
    data = study_data(workload=chase(memory_age="fragmented"), guest={"arch": "x86-64"}, between={"settle": "0ms"})
    data["kernel"] = [{"name": "k", "package": "linux-image-cloud-amd64"}]
    with pytest.raises(StudyError) as caught:
        read(data, "s.toml")
    assert caught.value.key == "workload[1].memory_age"
    assert "not of guests" in str(caught.value)
