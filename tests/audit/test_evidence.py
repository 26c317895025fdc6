"""What runs say of a setting: those of the same program, machine and kernel alone; the newest that decided."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hugewise.audit.inventory import Label, Tried, judge
from hugewise.model.results import Verdict
from tests.audit.conftest import Audit
from tests.build.trees import KERNEL, MACHINE_ID, Tree
from tests.requirements import need_root

GOLDEN = Path(__file__).parents[1] / "golden/runs/ended"
HERE = hmac.new(MACHINE_ID.encode(), b"hugewise", hashlib.sha256).hexdigest()[:16]


def tried(verdict: Verdict, arm: str = "thp", baseline: str = "base", *, at: float = 1, **given: Any) -> Tried:
    """A comparison of /usr/bin/app in the run `run-AT`."""
    told: dict[str, Any] = {"program": "/usr/bin/app", "cell": "c", "metric": "wall_s", "ratio": 0.9} | given
    return Tried(run=f"run-{at:g}", started=at, arm=arm, baseline=baseline, verdict=verdict, **told)


@pytest.mark.parametrize(
    ("comparisons", "policies", "state", "runs"),
    [
        ([], ["thp"], "not tested here", ()),
        ([tried("better")], ["thp"], "supported here", ("run-1",)),
        ([tried("better")], ["base"], "contradicted here", ("run-1",)),
        ([tried("worse")], ["base"], "supported here", ("run-1",)),
        ([tried("worse")], ["thp"], "contradicted here", ("run-1",)),
        ([tried("equivalent")], ["thp"], "supported here", ("run-1",)),
        ([tried("undecided")], ["thp"], "not tested here", ("run-1",)),
        ([tried("none")], ["thp"], "not tested here", ("run-1",)),
        # Neither side, or both, are the pages that are judged; or another program was measured.
        ([tried("better", "mthp-64k")], ["thp"], "not tested here", ()),
        ([tried("better", "thp-advised", "madvise")], ["thp-advised", "madvise"], "not tested here", ()),
        ([tried("better", program="/usr/bin/other")], ["thp"], "not tested here", ()),
        # The newest that decided, for each question by itself.
        ([tried("worse", at=1), tried("better", at=2)], ["thp"], "supported here", ("run-2",)),
        ([tried("better", at=1), tried("worse", at=2)], ["thp"], "contradicted here", ("run-2",)),
        ([tried("better", at=1), tried("undecided", at=2)], ["thp"], "supported here", ("run-1",)),
        ([tried("better", at=2), tried("worse", at=1, cell="d")], ["thp"], "contradicted here", ("run-1",)),
        ([tried("better"), tried("better", "mthp-64k")], ["thp"], "supported here", ("run-1",)),
    ],
)
def test_what_comparisons_say(comparisons: list[Tried], policies: list[str], state: str, runs: tuple[str, ...]) -> None:
    found = judge(comparisons, ["/usr/bin/app"], policies)
    assert (found.state, found.runs) == (state, runs)


def test_against_some_policies_only() -> None:
    found = [tried("better"), tried("worse", baseline="hugetlb-2m")]
    assert judge(found, ["/usr/bin/app"], ["thp"], ["base"]) == Label(
        "supported here", "thp was better than base (wall_s, thp/base 0.900)", ("run-1",)
    )
    assert judge(found, ["/usr/bin/app"], ["thp"]).state == "contradicted here"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """A run of `argv` on the host of the tree, in which thp and mthp-64k were better than base: its results folder."""

    def made(argv: str = "/usr/bin/app", *, machine: str = HERE, kernel: str = KERNEL, at: float | None = None) -> Path:
        place = tmp_path / "results/study/run"
        shutil.copytree(GOLDEN, place)
        first, *rest = (place / "run.jsonl").read_text().splitlines()
        opened = json.loads(first)
        opened["host"] |= {"machine": machine, "kernel": {"release": kernel}}
        opened["t"] = time.time() + 1000 if at is None else at
        opened["cells"][0] |= {"workload": "command", "values": {"argv": [argv], "proof": "exit"}}
        opened["cwd"] = "/srv"
        (place / "run.jsonl").write_text("\n".join([json.dumps(opened), *rest]) + "\n")
        return place.parents[1]

    return made


def label(audit: Audit, results: Path, section: str, name: str) -> dict[str, Any]:
    _, said = audit("--json", results=results)
    report = json.loads(said)
    found: list[dict[str, Any]] = [
        one["label"] for one in report["settings"] if (one["section"], one["name"]) == (section, name)
    ]
    return found[0] | {"searched": report["searched"]}


def test_a_run_of_this_program_here_counts(tree: Tree, audit: Audit, run: Callable[..., Path]) -> None:
    results = run()
    for mode, state, said in (
        ("always", "supported here", "thp was better than base"),
        ("never", "contradicted here", "base was worse than thp"),
        ("madvise", "not tested here", ""),
    ):
        tree.knob("enabled", mode)
        for section, name in (("programs that run", "app"), ("transparent huge pages", "enabled")):
            found = label(audit, results, section, name)
            assert found["state"] == state
            assert said in found["said"] and found["runs"] == ([str(results / "study/run")] if said else [])
    tree.knob("enabled", "always")
    _, text = audit(results=results)
    assert "supported here" in text and "labels by 1 run of these programs on this host" in text
    # A process for which THP is disabled has other pages than the host gives.
    tree.process(100, "app", unit="app.service", thp="0")
    assert label(audit, results, "programs that run", "app")["state"] == "contradicted here"


@pytest.mark.parametrize(
    ("given", "counted"),
    [
        ({"machine": "f" * 16}, "elsewhere"),
        ({"kernel": "6.1.0"}, "elsewhere"),
        ({"argv": "/usr/bin/other"}, "of_others"),
        ({"argv": "/usr/bin/gone"}, "of_others"),
        ({"at": 1.0}, "of_others"),  # the program was changed since
    ],
)
def test_a_run_of_anything_else_does_not(
    tree: Tree, audit: Audit, run: Callable[..., Path], given: dict[str, Any], counted: str
) -> None:
    tree.knob("enabled", "always")
    tree.program("/usr/bin/other")
    found = label(audit, run(**given), "programs that run", "app")
    assert (found["state"], found["searched"]["runs"], found["searched"][counted]) == ("not tested here", 0, 1)


@pytest.mark.parametrize("argv", ["app", "bin/app", "/srv/bin/app"])
def test_a_program_by_another_name_is_the_same_file(
    tree: Tree, audit: Audit, run: Callable[..., Path], argv: str
) -> None:
    tree.knob("enabled", "always")
    tree.link("/srv/bin", "../usr/bin")
    assert label(audit, run(argv), "programs that run", "app")["state"] == "supported here"


def test_an_interpreter_is_no_program(tree: Tree, audit: Audit, run: Callable[..., Path]) -> None:
    tree.knob("enabled", "always")
    tree.program("/usr/bin/python3.11")
    tree.process(100, "python3.11", unit="app.service")
    found = label(audit, run("/usr/bin/python3.11"), "programs that run", "python3.11")
    assert found["state"] == "not tested here"


def test_a_host_without_an_id_has_no_runs(tree: Tree, audit: Audit, run: Callable[..., Path]) -> None:
    tree.knob("enabled", "always")
    tree.at("/etc/machine-id").unlink()
    assert label(audit, run(), "programs that run", "app")["searched"]["elsewhere"] == 1


def test_what_is_no_run_is_passed_over_or_counted(audit: Audit, run: Callable[..., Path]) -> None:
    results = run()
    (results / "study/empty").mkdir()
    (results / "file").write_text("")
    (results / "study/broken").mkdir()
    (results / "study/broken/run.jsonl").write_text("{")
    assert json.loads(audit("--json", results=results)[1])["searched"]["unread"] == 1
    (results / "study/run/study.json").write_text("{}")
    assert json.loads(audit("--json", results=results)[1])["searched"]["unread"] == 2
    assert "2 folders cannot be read" in " ".join(audit(results=results)[1].split())


def test_root_does_not_believe_runs_that_others_can_write(tree: Tree, audit: Audit, run: Callable[..., Path]) -> None:
    need_root()
    tree.knob("enabled", "always")
    results = run()
    results.chmod(0o777)
    found = label(audit, results, "programs that run", "app")
    assert (found["state"], found["searched"]["runs"]) == ("not tested here", 0)
    assert "its runs are not believed" in " ".join(audit(results=results)[1].split())


def test_what_makers_say_is_held_against_runs(tree: Tree, audit: Audit, run: Callable[..., Path]) -> None:
    tree.program("/usr/bin/redis-server")
    tree.process(200, "redis-server")
    _, said = audit("--json", results=run("redis-server"))
    (claim,) = [load for load in json.loads(said)["settings"] if load["section"] == "what their makers say"]
    assert claim["value"].startswith("transparent huge pages cost redis latency")
    assert claim["label"]["state"] == "contradicted here"
