"""The open integer set: its inputs, its commands, and how results are checked."""

import hashlib

import pytest

from hugewise.model.procedure import Places, Step, Write
from hugewise.model.workload import ParameterValue
from hugewise.workloads import _staged, integer_set
from hugewise.workloads.integer_set import PROGRAMS, WORKLOAD
from tests.build.workloads import POOL, Said

PLACES = Places(data="/s/data", run="/s/run", ports=(), sut=(0, 3), client=(0, 3))


def values(program: str, size: float = 1.0) -> dict[str, ParameterValue]:
    return {"program": program, "size": size}


@pytest.mark.parametrize(
    ("drawn", "digest"),
    [
        (integer_set.random_text(2000, 1), "2c5f2d42b21c3a26"),
        (integer_set.random_formula(50, 3.0, 1), "981e2fcb6decbf76"),
        (integer_set.random_source(3, 1), "cfe85a7e3749ea8a"),
    ],
)
def test_inputs_are_the_same_everywhere(drawn: str, digest: str) -> None:
    assert hashlib.sha256(drawn.encode()).hexdigest()[:16] == digest


def test_a_formula_is_dimacs() -> None:
    head, *clauses = integer_set.random_formula(50, 3.0, 7).splitlines()
    assert head == "p cnf 50 150"
    assert len(clauses) == 150
    for clause in clauses:
        literals = [int(word) for word in clause.split()]
        assert literals[3:] == [0]
        assert all(1 <= abs(literal) <= 50 for literal in literals[:3])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_pinned_on_its_inputs(name: str) -> None:
    procedure = WORKLOAD.procedure(POOL, values(name), PLACES)
    assert procedure.timed.argv[:3] == ("taskset", "-c", "3")
    assert procedure.timed.argv[3] == (_staged.find(name) or name)
    assert procedure.timed.environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=2"
    (moved,) = procedure.before
    assert isinstance(moved, Step)
    data = WORKLOAD.data(values(name, 0.001))
    acts = list(data.recipe(PLACES))
    drawn = {f"/s/data/{act.path}" for act in acts if isinstance(act, Write)}
    assert set(moved.argv[4:]) == drawn | {"/s/data/reference"}
    assert [act.name for act in acts if isinstance(act, Step)] == ["reference", "keep", "tidy"]


def test_a_search_is_deeper_at_a_larger_size() -> None:
    depths = [WORKLOAD.procedure(POOL, values("stockfish", size), PLACES).timed.argv[7] for size in (0.01, 1, 2.6)]
    assert depths == ["3", "13", "15"]


def test_a_result_is_held_against_the_reference() -> None:
    right = Said({"timed": ""}, files={"reference": b"same", "result": b"same"})
    assert WORKLOAD.read(right, values("gcc")).problem is None
    wrong = Said({"timed": ""}, files={"reference": b"same", "result": b"other"})
    assert "not that of the reference" in (WORKLOAD.read(wrong, values("gcc")).problem or "")
    with pytest.raises(ValueError, match=r"input.xz is missing"):
        WORKLOAD.read(right, values("xz"))


def test_a_search_is_held_against_it_by_its_nodes() -> None:
    said = "Total time (ms) : {}\nNodes searched  : {}\nNodes/second    : 9\n"
    files = {"reference": said.format(7, 3595441).encode()}
    found = Said({"timed": ""}, stderr={"timed": said.format(8, 3595441)}, files=files)
    assert WORKLOAD.read(found, values("stockfish")).problem is None
    other = Said({"timed": ""}, stderr={"timed": said.format(8, 3)}, files=files)
    assert WORKLOAD.read(other, values("stockfish")).problem is not None
    with pytest.raises(ValueError, match="not in its output"):
        WORKLOAD.read(Said({"timed": "uciok"}, files=files), values("stockfish"))


def test_a_pool_is_for_programs_that_take_their_memory_from_malloc() -> None:
    assert WORKLOAD.pool(POOL, values("gcc")) == 0
    assert WORKLOAD.pool(POOL, values("stockfish")) > 320 << 20


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_staged, "find", lambda name: None if name == "stockfish" else f"/usr/bin/{name}")
    (missing,) = WORKLOAD.missing(values("stockfish"))
    assert (missing.package, "stockfish" in missing.reason) == ("stockfish", True)
