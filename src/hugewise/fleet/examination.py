"""What `hugewise doctor` says on a host, and what of a question can run there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.errors import HugewiseError
from hugewise.fleet.installation import THIS
from hugewise.fleet.orders import Examined, FleetQuestion
from hugewise.fleet.question import asked
from hugewise.model.check import Check
from hugewise.model.results import LeftOut

__all__ = ["examined"]

_PATIENCE_S = 60.0
_LONGEST = 4000


class _Doctor(msgspec.Struct, frozen=True):
    mechanism: str
    checks: tuple[Check, ...]


_SAID = msgspec.json.Decoder(_Doctor)


def examined(question: FleetQuestion | None, folder: Path) -> Examined:
    """Both, as this account; what cannot be found out is told as an error. `folder`: where it is asked."""
    try:
        said = _doctor(folder)
        if question is None:
            return Examined(mechanism=said.mechanism, checks=said.checks)
        cells, left_out, install = _planned(question)
    except HugewiseError as error:
        hint = "" if error.hint is None else f" (cure: {error.hint})"
        return Examined(error=f"{error.message}{hint}"[:_LONGEST])
    return Examined(mechanism=said.mechanism, checks=said.checks, cells=cells, left_out=left_out, install=install)


def _doctor(folder: Path) -> _Doctor:
    """Raises HugewiseError."""
    try:
        done = subprocess.run(
            [*THIS, "doctor", "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=folder,
            check=False,
            timeout=_PATIENCE_S,
        )
        return reading.decoded(_SAID, done.stdout)
    except subprocess.TimeoutExpired:
        raise HugewiseError(f"hugewise doctor has not ended within {_PATIENCE_S:g} s") from None
    except reading.UnreadableError:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise HugewiseError(f"hugewise doctor failed: {''.join(said) or f'exit status {done.returncode}'}") from None


def _planned(question: FleetQuestion) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    """Cells with their arms, what is left out and why, and the packages that would cure it. Raises HugewiseError."""
    from hugewise.session import feasibility  # noqa: PLC0415  (policies and workloads)

    study = asked(question, "study.toml")
    if study.guest is not None:
        lacking = [check for check in feasibility.guest_checks(study) if check.state == "missing"]
        return (
            () if lacking else tuple(use.called for use in study.workload),
            tuple(f"{check.name}: {check.finding}"[:_LONGEST] for check in lacking),
            _packages([name for check in lacking for name in check.packages]),
        )
    plan = feasibility.make_plan(study)
    cells = tuple(
        f"{cell.id}: {', '.join(arm.name for arm in cell.arms if arm.name != cell.baseline)} against {cell.baseline}"
        for cell in plan.cells
    )
    left_out = tuple(_without(each)[:_LONGEST] for each in plan.left_out)
    return cells, left_out, _packages([name for each in plan.left_out for name in each.packages])


def _without(each: LeftOut) -> str:
    return f"{each.cell}, {each.policy}: {each.reason}"


def _packages(names: list[str]) -> str | None:
    return f"apt install {' '.join(sorted(set(names)))}" if names else None
