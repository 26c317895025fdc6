"""The table [sampling]: durations, `off`, and what is refused."""

import pytest

from hugewise.errors import StudyError
from hugewise.study.load import parse
from hugewise.study.study import Sampling

STUDY = 'format = 1\nname = "s"\npolicies = ["base", "thp"]\n[[workload]]\nname = "chase"\n'


def read(table: str) -> Sampling:
    return parse(f"{STUDY}[sampling]\n{table}\n", "s.toml").sampling


def test_a_second_by_default() -> None:
    assert parse(STUDY, "s.toml").sampling == Sampling(period=1.0)


def test_durations_and_off_are_read() -> None:
    assert read('period = "100ms"') == Sampling(period=0.1)
    assert read('period = "off"') == Sampling(period=0.0)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('period = "1ms"', r"s.toml: sampling.period = '1ms': is out of range"),
        ('period = "2h"', r"sampling.period = '2h': is out of range"),
        ("period = true", "sampling.period"),
        ('idle = "20s"', "unknown key"),
    ],
)
def test_mistakes_name_the_key_and_the_cure(table: str, words: str) -> None:
    with pytest.raises(StudyError, match=words) as raised:
        read(table)
    assert raised.value.hint
