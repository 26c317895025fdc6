"""Makes the data of staged workloads, once: their recipe is played on a stage of its own, and what came out is kept."""

from __future__ import annotations

import pwd
from collections.abc import Callable
from pathlib import Path

from hugewise.attempt.stage import Stage, StageError
from hugewise.errors import HugewiseError
from hugewise.host.scratch import Scratch, fresh, need_room
from hugewise.machine.machine import Contained, Machine
from hugewise.model.scene import Data, Places, Staged
from hugewise.store import dataset

__all__ = ["prepared"]


def prepared(  # noqa: PLR0917 (what is made, where, and by whom)
    workload: Staged,
    data: Data,
    machine: Machine,
    results: Path,
    scratch: Scratch,
    account: pwd.struct_passwd | None,
    contain: Callable[[str], Contained],
    say: Callable[[str], None],
) -> dataset.Kept:
    """The data as they are kept below `results`, made now if need be.

    Raises UserError where there is no room for a copy, HugewiseError with the last lines of the step that failed.
    """
    kept = dataset.find(results, data)
    need_room(scratch.path, data.bytes if kept is None else kept.bytes)
    if kept is not None:
        return kept
    say(f"making {data.name} once; it is kept in {results / 'data'}")
    everywhere = machine.cpus()
    places = Places(
        data=str(scratch.folder("data")),
        run=str(scratch.folder("run")),
        ports=machine.ports(workload.ports),
        sut=everywhere,
        client=everywhere,
    )
    leaf = contain("data")
    outputs = scratch.path / "outputs"
    fresh(outputs, None, None)  # nobody else writes there
    stage = Stage(machine, outputs, places, account, leaf, leaf, None, "smaps")
    try:
        stage.play(data.recipe(places))
        return dataset.keep(results, data, Path(places.data))
    except StageError as error:
        raise HugewiseError(f"{data.name} cannot be made: {error.message}", hint="see: hugewise doctor") from None
    finally:
        stage.end()
        leaf.kill()
        leaf.remove()
        scratch.clear()
