"""`hugewise combine` on run folders that are written here."""

import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from hugewise.analysis import analysis, combining
from hugewise.cli import combine
from hugewise.cli.combine import main
from hugewise.cli.main import cli
from hugewise.errors import UserError
from hugewise.model import guest as record
from hugewise.model.guest import GuestsRecord, KernelRecord
from hugewise.model.results import Results
from hugewise.report.reasons import in_words, worded
from hugewise.store.records import ArmRecord, CellRecord, Run
from tests.analysis.test_forecast import cell, the_study, write_run
from tests.build.logs import rewritten

GOLDEN = Path(__file__).parents[1] / "golden" / "combine.txt"
TWO = (cell("chase", "thp", "mthp"),)


def a_run(folder: Path, seed: int, *, mean: float = -0.1, cells: tuple[CellRecord, ...] = TWO, **changes: Any) -> Path:
    """A run of 12 pairs with an id and a seed of its own; `of` is its study, the rest changes its first record."""
    of = changes.pop("of", the_study())
    differences = list(np.random.default_rng(seed).normal(mean, 0.05, 12))
    path = write_run(folder / str(seed), of, differences, cells=cells, seed=seed)
    named = {"run": f"20261120T21000{seed}Z-000{seed}", "seed_hash": f"{seed:064x}"}
    named |= {"host": {"name": f"host-{seed}"}} | changes
    rewritten(path, lambda records: [records[0] | named, *records[1:]])
    return path


def refused(*runs: Path, confidence: float | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        main(runs, confidence, as_json=False)
    assert caught.value.hint
    return caught.value


def called(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["combine", *map(str, arguments)])


def test_two_runs_say_together_what_neither_says_alone(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, seed, mean=-0.04) for seed in (1, 2, 3)]
    single = [one.verdict for path in runs for one in analysis.analyze(path).cells[0].comparisons]
    found = combining.answer(runs)
    assert single == ["undecided"] * 6
    assert found.confidence == 0.99
    assert [one.verdict for one in found.comparisons] == ["better", "better"]
    for one in found.comparisons:
        assert [part.pairs for part in one.parts] == [12, 12, 12]
        assert one.smaller == pytest.approx(np.prod([part.smaller for part in one.parts if part.smaller]))


def test_the_table(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, 1), a_run(tmp_path, 2), a_run(tmp_path, 3, cells=(cell("chase", "thp", "thp-other"),))]
    done = called(*runs)
    assert done.exit_code == 0, done.exception
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        GOLDEN.write_text(done.output, encoding="utf-8")
    assert done.output == GOLDEN.read_text(encoding="utf-8")
    assert all(len(line) <= 80 for line in done.output.splitlines())


ENDS = ["mean", "slow", "p99"]


def test_end_points_are_combined_beside_the_typical_ratio(tmp_path: Path) -> None:
    of = the_study(end_points=ENDS)
    runs = [a_run(tmp_path, seed, of=of) for seed in (1, 2, 3)]
    found = combining.answer(runs)
    assert [(one.arm, one.end_point) for one in found.comparisons] == [
        *(("thp", "typical ratio"), ("mthp", "typical ratio")),
        *((arm, end_point) for arm in ("thp", "mthp") for end_point in ENDS),
    ]
    for one in found.comparisons:
        assert one.larger == pytest.approx(math.prod(part.larger or 0.0 for part in one.parts))
    told = {one.key[1:2] + one.key[4:]: one for one in found.comparisons}
    kept = [analysis.analyze(path).cells[0].end_points[0] for path in runs]
    assert told["thp", "mean"].smaller == pytest.approx(math.prod(one.evidence_smaller or 0.0 for one in kept))
    assert [told["thp", name].verdict for name in ("typical ratio", *ENDS)] == ["better"] * 2 + ["undecided"] * 2
    # No threshold is made within 12 pairs that any run is beyond: no evidence, and no crash.
    assert told["thp", "p99"].larger == told["thp", "p99"].smaller == 1
    # More comparisons share the error rate, so that each has to show more.
    plain = combining.answer([a_run(tmp_path / "plain", seed) for seed in (1, 2, 3)]).comparisons[0]
    among = told["thp", "typical ratio"]
    assert plain.smaller == pytest.approx(among.smaller)
    assert plain.adjusted is not None and among.adjusted is not None and among.adjusted < plain.adjusted
    text = " ".join(" ".join(combine.lines(found)).split())
    assert "over 8 comparisons" in text
    assert "chase: thp against base, ns_per_load, typical ratio" in text
    assert "chase: mthp against base, ns_per_load, mean" in text
    assert "better: ns_per_load is smaller in sum (adjusted e-value" in text
    done = called(*runs, "--json", "--confidence", "0.9")
    assert msgspec.json.decode(done.output, type=combining.Combination) == msgspec.convert(
        worded(combining.answer(runs, 0.9)), combining.Combination
    )
    assert [one["end_point"] for one in json.loads(done.output)["comparisons"]][:3] == [
        "typical ratio",
        "typical ratio",
        "mean",
    ]


def test_an_end_point_that_only_one_run_declared_is_named_and_left_out(tmp_path: Path) -> None:
    runs = a_run(tmp_path, 1, of=the_study(end_points=["mean"])), a_run(tmp_path, 2)
    found = combining.answer(runs)
    assert {one.end_point for one in found.comparisons} == {"typical ratio"}
    assert "thp against base on chase, ns_per_load, mean: only in 20261120T210001Z-0001" in found.alone


def test_a_design_adds_to_the_estimand_and_not_to_the_end_point(tmp_path: Path) -> None:
    of = the_study(end_points=["mean"], design={"kind": "interleaved"})
    both = a_run(tmp_path, 1, of=of), a_run(tmp_path, 2, of=of)
    assert {one.end_point for one in combining.answer(both).comparisons} == {"typical ratio", "mean"}
    plain = a_run(tmp_path, 3, of=the_study(end_points=["mean"]))
    assert "the design of" in refused(both[0], plain).message


def test_a_run_without_e_values_of_its_end_points_is_refused_for_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = the_study(end_points=["mean"])
    old, new = a_run(tmp_path, 1, of=of), a_run(tmp_path, 2, of=of)
    analyzed = analysis.results_of

    def before(run: Run) -> Results:
        found = analyzed(run)
        if run.path != old:
            return found
        cells = [
            msgspec.structs.replace(
                cell,
                end_points=tuple(
                    msgspec.structs.replace(one, evidence=None, evidence_larger=None, evidence_smaller=None)
                    for one in cell.end_points
                ),
            )
            for cell in found.cells
        ]
        return msgspec.structs.replace(found, cells=tuple(cells))

    monkeypatch.setattr(analysis, "results_of", before)
    found = {one.key[1:2] + one.key[4:]: one for one in combining.answer((old, new)).comparisons}
    assert found["thp", "typical ratio"].direction == "smaller"
    assert found["thp", "mean"].direction == "refused"
    assert in_words(found["thp", "mean"].reason) == "20261120T210001Z-0001 has no e-value: none was kept of its mean"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"seed_hash": f"{1:064x}"}, "have the same seed"),
        ({"mechanism": "process"}, "never merged"),
        ({"cells": (cell("other", "thp"),)}, "no comparison in common"),
        ({"of": the_study(method="fixed-n")}, "fixed-n"),  # which has no e-values
    ],
)
def test_what_cannot_be_put_together_is_refused(tmp_path: Path, other: dict[str, Any], why: str) -> None:
    run = a_run(tmp_path, 1)
    assert why in refused(run, a_run(tmp_path, 2, **other)).message
    assert "one run alone" in refused(run).message
    assert "20261120T210001Z-0001 is given twice" in refused(run, run).message


@pytest.mark.parametrize("what", ["parameters", "treatment of the arm", "design"])
def test_what_is_not_the_same_is_refused(tmp_path: Path, what: str) -> None:
    base = cell("chase", "thp")
    arms = (
        base.arms[0],
        msgspec.structs.replace(
            base.arms[1], treatment=msgspec.structs.replace(base.arms[1].treatment, knobs={"/k": "1"})
        ),
    )
    changes: dict[str, dict[str, Any]] = {
        "parameters": {"cells": (msgspec.structs.replace(base, values={"bytes": 1}),)},
        "treatment of the arm": {"cells": (msgspec.structs.replace(base, arms=arms),)},
        "design": {"cells": (base,), "of": the_study(design={"kind": "interleaved"})},
    }
    error = refused(a_run(tmp_path, 1, cells=(base,)), a_run(tmp_path, 2, **changes[what]))
    assert f"the {what} of 20261120T210001Z-0001 and 20261120T210002Z-0002 differ" in error.message


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"accelerator": "kvm"}, "accelerator"), ({"origin": "another"}, "guest of the arm"), ({}, "")],
)
def test_guests_are_put_together_with_their_like_only(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    base = cell("chase", "thp")
    arms = tuple(msgspec.structs.replace(arm, kernel="k") for arm in base.arms)
    runs = [a_run(tmp_path, seed, cells=(msgspec.structs.replace(base, arms=arms),)) for seed in (1, 2)]
    kernel = KernelRecord(name="k", release="6", origin="one", sha256="", had="build", base_page=4096, differs=())
    kept = GuestsRecord(arch="arm64", accelerator="tcg", why="", counting=False, baseline="k", kernels=(kernel,))
    record.write(runs[0], kept)
    rewritten(runs[0])
    origin = changes.get("origin", "one")
    other = msgspec.structs.replace(
        kept,
        accelerator=changes.get("accelerator", "tcg"),
        kernels=(msgspec.structs.replace(kernel, origin=origin),),
    )
    record.write(runs[1], other)
    rewritten(runs[1])
    if what:
        assert f"the {what} of 20261120T210001Z-0001 and 20261120T210002Z-0002 differ" in refused(*runs).message
    else:
        assert combining.answer(runs).comparisons[0].direction != "refused"


def counted(folder: Path, seed: int, facts: dict[str, str], arms: tuple[ArmRecord, ...]) -> Path:
    """A run in counting guests with these facts."""
    path = a_run(folder, seed, cells=(msgspec.structs.replace(cell("chase", "thp"), arms=arms),))
    for kept in path.rglob("attempt.json"):
        kept.write_text(json.dumps(json.loads(kept.read_text()) | {"guest": facts}), encoding="utf-8")
    record.write(path, GuestsRecord(arch="arm64", accelerator="tcg", why="", counting=True, baseline="k", kernels=()))
    rewritten(path)
    return path


def test_counts_of_two_agents_are_not_put_together(tmp_path: Path) -> None:
    arms = tuple(msgspec.structs.replace(arm, kernel="k") for arm in cell("chase", "thp").arms)
    told = {"kernel_sha256": "0", "qemu": "7.2", "initramfs_sha256": "a"}
    one, same = counted(tmp_path, 1, told, arms), counted(tmp_path, 2, told, arms)
    assert combining.answer((one, same)).comparisons[0].direction != "refused"
    other = counted(tmp_path, 3, told | {"initramfs_sha256": "b"}, arms)
    named = "the agent of the counts of 20261120T210001Z-0001 and 20261120T210003Z-0003 differ"
    assert named in refused(one, other).message
    unknown = counted(tmp_path, 4, {"kernel_sha256": "0", "qemu": "7.2"}, arms)
    assert "which agent its guests had was not kept" in refused(one, unknown).message


def test_different_confidences_need_a_choice(tmp_path: Path) -> None:
    runs = a_run(tmp_path, 1), a_run(tmp_path, 2, of=the_study(confidence=0.999))
    error = refused(*runs)
    assert error.hint == "choose one, such as --confidence 0.999"
    assert combining.answer(runs, 0.999).confidence == 0.999
