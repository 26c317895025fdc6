"""What is run before each attempt: outside its timed region, in the same surroundings, and to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.errors import UserError
from hugewise.machine import probe
from hugewise.model.policy import Treatment
from hugewise.model.workload import Launch, ParameterValue, Proof
from tests.attempt.test_runner_guests import Heard, attempted, bench, cell
from tests.attempt.test_runner_host import here

ONCE = "set -C; echo x > made"
"""A program that fails where its output is there already."""


class Twice(Heard):
    """A command with another before it, and maybe an untimed twin."""

    def __init__(self, script: str, prepare: tuple[str, ...], proof: Proof = "exit") -> None:
        super().__init__(argv=("/bin/sh", "-c", script))
        self.before, self.wanted = prepare, proof

    def launch(self, treatment: Treatment, values: dict[str, ParameterValue]) -> Launch:  # type: ignore[override]
        return Launch(argv=self.argv, proof=self.wanted, prepare=self.before)


def test_a_program_that_writes_its_output_once_is_measured_again_and_again(tmp_path: Path) -> None:
    boarding = here(tmp_path)
    for number in range(2):
        made = bench(tmp_path / str(number), boarding=boarding)
        attempt = attempted(made, cell(Twice(ONCE, ("rm", "-f", "made"))))
        assert (attempt.state, attempt.reason) == ("accepted", None)
    assert attempted(bench(tmp_path / "alone", boarding=boarding), cell(Twice(ONCE, ()))).state == "failed"


def test_it_is_not_timed_and_has_the_same_folder_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "yes")
    before = ("/bin/sh", "-c", "echo $OF_THE_CALLER $(pwd); id -u")
    made = bench(tmp_path / "run", boarding=here(tmp_path))
    attempt = attempted(made, cell(Twice("true", before)))
    (draft,) = (made.folder.path / "attempts").glob("b*")
    prepared, timed = (
        {type(each): each for each in probe.decode((draft / name).read_bytes().splitlines(keepends=True))}
        for name in ("prepare.jsonl", "events.jsonl")
    )
    end, start, exited = prepared[probe.Exit], timed[probe.Start], timed[probe.Exit]
    assert isinstance(end, probe.Exit) and isinstance(start, probe.Start) and isinstance(exited, probe.Exit)
    assert end.t_ns <= start.t_ns
    assert attempt.wall_s == exited.wall_ns / 1e9 <= (exited.t_ns - start.t_ns) / 1e9
    assert (draft / "prepare.stdout").read_text().splitlines()[0] == f"yes {tmp_path}"


def test_no_shell_reads_it(tmp_path: Path) -> None:
    made = bench(tmp_path / "run", boarding=here(tmp_path))
    attempted(made, cell(Twice("true", ("echo", "$HOME;", "touch", "x"))))
    (draft,) = (made.folder.path / "attempts").glob("b*")
    assert (draft / "prepare.stdout").read_text() == "$HOME; touch x\n"


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (("/bin/sh", "-c", "echo no room >&2; exit 3"), "exit status 3: no room"),
        (("/bin/sh", "-c", "kill -9 $$"), "signal 9"),
        (("no-such-program-anywhere",), "no-such-program-anywhere"),
    ],
)
def test_where_it_fails_the_run_ends_with_the_reason(tmp_path: Path, prepare: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match="the command that prepares an attempt fails") as caught:
        attempted(bench(tmp_path / "run", boarding=here(tmp_path)), cell(Twice("true", prepare)))
    assert words in caught.value.message
    assert "status 0" in (caught.value.hint or "")
