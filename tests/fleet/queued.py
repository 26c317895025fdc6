"""Slurm without a cluster: its four programs as small ones, which print what the real ones print of jobs and nodes.

The lines are those of Debian's Slurm 22.05, as `tests.fleet.cluster` has it. A job is queued and nothing more, or is
run at once where a test says so; a test tells the rest (`become`, `node`).
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hugewise.fleet import slurm
from hugewise.machine import programs

# Their first lines: who they are, and what they were told. `$HERE` is the folder of the test.
_BEGINS = """#!/bin/sh
HERE={here}
name=${{0##*/}}
printf '%s\\n' "$name $*" >> $HERE/told
if [ -e $HERE/refuses-$name ]; then cat $HERE/refuses-$name >&2; exit 1; fi
"""
_SBATCH = """
number=$(($(wc -l < $HERE/jobs) + 12))
cat > $HERE/$number.sh
job=$(sed -n 's/^#SBATCH --job-name=//p' $HERE/$number.sh)
said=$(sed -n 's/^#SBATCH --output=//p' $HERE/$number.sh)
if [ -e $HERE/runs ]; then
    /bin/sh $HERE/$number.sh >> $said 2>&1
    echo "$number|$([ $? = 0 ] && echo COMPLETED || echo FAILED)|$job|None" >> $HERE/jobs
else
    echo "$number|PENDING|$job|None" >> $HERE/jobs
fi
echo $number
"""
# `--signal` tells a job that runs something, and fails without a word where it has ended; without it the job is over,
# if it was not. What a job waited for stays beside its state.
_SCANCEL = """
for number; do :; done
case "$*" in
    *--signal=*) grep -q "^$number|RUNNING|" $HERE/jobs ;;
    *) sed -i "s/^$number|\\(PENDING\\|RUNNING\\)|/$number|CANCELLED|/" $HERE/jobs ;;
esac
"""


class QueuedSlurm:
    """In the place of Slurm for one test. `folder` is root's, as are those above it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, nodes: Sequence[str] = ("n1", "n2")) -> None:
        self.folder = folder
        programs_ = folder / "programs"
        programs_.mkdir(parents=True)
        for name, script in (
            ("sbatch", _SBATCH),
            ("squeue", "cat $HERE/jobs\n"),
            ("sinfo", "cat $HERE/nodes\n"),
            ("scancel", _SCANCEL),
        ):
            (programs_ / name).write_text(_BEGINS.format(here=folder) + script)
            (programs_ / name).chmod(0o755)
        (folder / "jobs").touch()
        (folder / "told").touch()
        (folder / "nodes").write_text("".join(f"{name}|idle|none\n" for name in nodes))
        # Root's programs are looked for in folders of its own alone.
        monkeypatch.setattr(programs, "PATH", f"{programs_}:{programs.PATH}")
        monkeypatch.setenv("PATH", f"{programs_}:{programs.PATH}")
        monkeypatch.setattr(slurm, "_FRESH_S", 0.0)  # what a test has become of a job is seen at once
        monkeypatch.setattr(slurm, "_POLL_S", 0.0)

    def told(self, program: str) -> list[str]:
        """What a program was told, one line a call."""
        lines = (self.folder / "told").read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{program} ")]

    def job(self, number: int) -> str:
        """The text that sbatch was given."""
        return (self.folder / f"{number}.sh").read_text()

    def states(self) -> list[str]:
        """Of all jobs, the oldest first."""
        return [line.split("|")[1] for line in (self.folder / "jobs").read_text().splitlines()]

    def become(self, number: int, state: str, reason: str = "None") -> None:
        """Have a job be in that state."""
        path = self.folder / "jobs"
        rows = [line.split("|") for line in path.read_text().splitlines()]
        for row in rows:
            if row[0] == str(number):
                row[1], row[3] = state, reason
        path.write_text("".join("|".join(row) + "\n" for row in rows))

    def node(self, name: str, state: str, reason: str = "none") -> None:
        """Have a node be in that state."""
        path = self.folder / "nodes"
        rows = [line for line in path.read_text().splitlines() if not line.startswith(f"{name}|")]
        path.write_text("\n".join([*rows, f"{name}|{state}|{reason}", ""]))

    def refuse(self, program: str, said: str) -> None:
        """Have a program fail with these words."""
        (self.folder / f"refuses-{program}").write_text(f"{said}\n")

    def run_at_once(self) -> None:
        """From now on, a job is run when it is queued."""
        (self.folder / "runs").touch()
