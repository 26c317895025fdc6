"""A run folder that grows: recorded, with its last block taken out and put back."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.build.logs import lines, write_lines
from tests.golden import GOLDEN


def growing(folder: Path) -> Callable[[], None]:
    """Make `folder` a run of two blocks; the function that is returned adds the third, as the run did."""
    shutil.copytree(GOLDEN / "runs" / "interrupted", folder)
    every = lines(folder)
    begins = next(at for at, line in enumerate(every) if b'"block_opened"' in line and b'"block":3,' in line)
    taken = folder.with_name(f"{folder.name}-taken")
    taken.mkdir()
    for attempt in sorted((folder / "attempts").glob("b00003-*")):
        attempt.rename(taken / attempt.name)
    write_lines(folder, every[:begins])

    def grow() -> None:
        for attempt in sorted(taken.iterdir()):
            attempt.rename(folder / "attempts" / attempt.name)
        with (folder / "run.jsonl").open("ab") as log:
            log.write(b"".join(every[begins:]))

    return grow
