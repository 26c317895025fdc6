"""What a server with an option of its own for pages of a pool would be given: its words, and how large a pool."""

from typing import Any

import msgspec
import pytest

from hugewise.advise.candidates import SettingCandidate
from hugewise.advise.program import own_options
from hugewise.advise.question import Question, command, confirmation, service
from hugewise.model.pages import PageSizes
from tests.advise.test_pilot import SEEN
from tests.requirements import need_program

SIZES = PageSizes(4096, 2 << 20, (), (2 << 20, 1 << 30))
POSTGRES = ("postgres", "-D", "{folder}", "-p", "{port}")


def asked(*words: str, **more: Any) -> Question:
    return Question(workload=service(words, ("ask",), seconds=60.0), **more)


def test_postgresql_takes_what_the_pilot_saw_shared() -> None:
    seen = msgspec.structs.replace(SEEN, shared_bytes=(210 << 20) + 4096)
    found = own_options(seen, asked(*POSTGRES), SIZES)
    expected = ["postgres", "-c", "huge_pages=on", "-c", "huge_page_size=2048kB", *POSTGRES[1:]]
    assert found[2 << 20] == {"server": expected, "own_pool": True, "pool_bytes": (212 + 2) << 20}
    assert found[1 << 30] == "it has less of such memory than one page of that size"
    large = own_options(msgspec.structs.replace(SEEN, shared_bytes=5 << 29), asked(*POSTGRES), SIZES)[1 << 30]
    assert not isinstance(large, str) and large["pool_bytes"] == 4 << 30


def test_what_nobody_saw_is_asked_for() -> None:
    assert "name it with --pool" in str(own_options(SEEN, asked(*POSTGRES), SIZES)[2 << 20])
    named = own_options(SEEN, asked(*POSTGRES, pool=64 << 20), SIZES)[2 << 20]
    assert not isinstance(named, str) and named["pool_bytes"] == 66 << 20


def test_a_server_that_takes_a_pool_already_is_left_as_it_is() -> None:
    taking = msgspec.structs.replace(SEEN, shared_bytes=1 << 30, coverage={"hugetlb:2097152": 5e8})
    assert own_options(taking, asked(*POSTGRES), SIZES)[2 << 20] == "it takes pages of a pool already"


def test_a_server_that_says_it_itself_is_left_as_it_is() -> None:
    seen = msgspec.structs.replace(SEEN, shared_bytes=1 << 30)
    found = own_options(seen, asked(*POSTGRES, "-c", "huge_pages=off"), SIZES)
    assert found[2 << 20] == "its command says huge_pages itself"


@pytest.mark.parametrize("words", [("redis-server", "--port", "{port}"), ("sh", "-c", "true")])
def test_other_servers_have_no_such_option(words: tuple[str, ...]) -> None:
    assert own_options(SEEN, asked(*words), SIZES) == {}
    assert own_options(SEEN, Question(workload=command(words)), SIZES) == {}


def test_mariadb_is_asked_how_much_it_maps() -> None:
    need_program("mariadbd", "mariadb-server")
    words = ("mariadbd", "--no-defaults", "--datadir={folder}", "--innodb-buffer-pool-size=64M", "--key-buffer-size=8M")
    found = own_options(SEEN, asked(*words), SIZES)[2 << 20]
    assert not isinstance(found, str)
    # Beside these Aria's cache of 128 MiB, and the log's buffers, as it comes.
    assert (64 + 8 + 128) << 20 <= found["pool_bytes"] <= (64 + 8 + 128 + 40) << 20
    assert found["server"][:3] == ["mariadbd", "--no-defaults", "--large-pages"]


def test_the_arm_is_one_of_an_ordinary_study() -> None:
    seen = msgspec.structs.replace(SEEN, shared_bytes=210 << 20)
    question = asked(*POSTGRES)
    parameters = own_options(seen, question, SIZES)[2 << 20]
    use = {"name": "own-2m", "from": "reserved-2m", "mechanism": "process", "parameters": parameters}
    made = SettingCandidate(name="own-2m", use=use, reach="pool", reason="")
    study = confirmation(question, made, 0, 30.0, 24)
    (arm,) = (one for one in study.policies if one.name == "own-2m")
    (of_others,) = study.workload
    assert of_others.parameters["server"] == ("postgres", "-c", "huge_pages=off", *POSTGRES[1:])
    assert arm.parameters["pool_bytes"] == 212 << 20 and arm.registered == "reserved-2m"
