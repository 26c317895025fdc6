"""The files of the recommended settings, written below a folder as they would lie below `/`. Nothing is ever applied.

FOLDER/README.md                          what each file reaches, needs and changes, how it is checked and undone
FOLDER/etc/tmpfiles.d/page-sizes.conf     ... one setting for all cells; several are in a folder each
FOLDER/in-the-guest/...                   what belongs into a guest
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from hugewise.beneath import DirFd
from hugewise.deployment.configuration import with_evidence
from hugewise.deployment.program import BY_HAND, LAUNCHER, UnitStart, completed, of_unit
from hugewise.deployment.quoting import plain, shell_words, unit_name
from hugewise.errors import StorageError, UserError
from hugewise.host.local_host import LocalHost
from hugewise.machine.fingerprint import machine_id
from hugewise.model.cause import CellAnswer
from hugewise.model.policy import DeployedFile, Deployment
from hugewise.model.results import CellResult, Results
from hugewise.report.cell_answers import answers
from hugewise.report.sentences import arm_of, sentence, strength, winners
from hugewise.visible import printable

_GUEST = "in-the-guest"
_README = "README.md"
_LONGEST_NAME = 60


class Recommended(msgspec.Struct, frozen=True, kw_only=True):
    """The setting of some cells: its arm, the files, what was found, and by which runs; or `why` there are none."""

    cells: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    arm: str = ""
    deployment: Deployment | None = None
    found: tuple[str, ...] = ()
    why: str = ""


def recommended(*runs: Results, arms: Sequence[str | None] = ()) -> tuple[Recommended, ...]:
    """Return for each cell the arm that beat its baseline by most, else the one that makes no difference and is better
    in what was declared beside the metric; cells with the same files together; and those without.

    `arms`: of each run, the one that was chosen for something else than its speed, whatever its verdict.
    """
    made: list[Recommended] = []
    chosen = zip(runs, [*arms, *[None] * (len(runs) - len(arms))], strict=True)
    every = [
        msgspec.structs.replace(_of_cell(run, cell, answer, arm, weighed=not arms), evidence=_evidence(run))
        for run, arm in chosen
        for cell, answer in zip(run.cells, answers(run), strict=True)
    ]
    for one in every:
        same = next((each for each in made if one.deployment and each.deployment == one.deployment), None)
        if same is None:
            made.append(one)
        else:
            both = msgspec.structs.replace(
                same,
                cells=same.cells + one.cells,
                found=same.found + one.found,
                evidence=tuple(dict.fromkeys(same.evidence + one.evidence)),
            )
            made[made.index(same)] = both
    return tuple(made)


def _of_cell(
    results: Results, cell: CellResult, answer: CellAnswer, chosen: str | None, *, weighed: bool
) -> Recommended:
    best = next((comparison for comparison in cell.comparisons if comparison.arm == chosen), None)
    for other, comparison, _ in winners(results):
        if chosen is None and other.cell == cell.cell and (best is None or strength(comparison) > strength(best)):
            best = comparison
    beside = best is None and weighed and answer.trade == "better beside"
    if beside:
        best = next(comparison for comparison in cell.comparisons if comparison.arm == answer.setting)
    if best is None:
        why = f"no policy was better than its baseline {cell.baseline}" if cell.comparisons else "nothing was compared"
        return Recommended(cells=(cell.cell,), why=why)
    arm = arm_of(cell, best.arm)
    deployment = arm.deployment if arm is not None else None
    if deployment is None or not deployment.files:
        was = "better beside the metric" if beside else "best"
        why = f"{best.arm} was {was}, but has no files: {deployment.note if deployment else 'none were kept'}"
        return Recommended(cells=(cell.cell,), arm=best.arm, why=why)
    said = sentence(best, cell.metric, results.margin)
    found = (f"{cell.cell}: {answer.text if beside else said}",)
    return Recommended(cells=(cell.cell,), arm=best.arm, deployment=deployment, found=found)


def write_files(
    results: Results,
    output: Path,
    unit: str | None = None,
    *,
    also: Sequence[Results] = (),
    arms: Sequence[str | None] = (),
    start: UnitStart | None = None,
) -> list[str]:
    """Write the files of every cell's recommended arm below `output`, with README.md; what was done, in lines.

    `also`: other runs of the same host, whose cells have names of their own. `arms` are recommended by their names, of
    each run one, whatever their verdicts (`recommended`). `unit` is the service that they are for, `start` how it is
    started: None where this host has no such service.
    Raises UserError for a folder that holds something, that is the root of this host, or (as root) another account's;
    and for a name that is no unit's. Raises StorageError.
    """
    name = None if unit is None else unit_name(unit)
    if name is not None and not name.endswith(".service"):
        raise UserError(f"--unit {unit}: not a service", hint="name the service that starts the program")
    settings = tuple(_for_unit(setting, name, start) for setting in recommended(results, *also, arms=arms))
    whole = [setting for setting in settings if setting.deployment is not None]
    evidence = tuple(dict.fromkeys(line for each in (results, *also) for line in _evidence(each)))
    elsewhere = tuple(_elsewhere((results, *also)))
    told, readme = (
        list(elsewhere),
        [
            "# Page sizes: files to deploy",
            "",
            *(line for said in elsewhere for line in (f"**{said}**", "")),
            "Nothing has been applied. The commands are for a shell of root's in this folder.",
            "",
            *_quoted(evidence),
        ],
    )
    if any(file.instead for one in whole for file in _files(one)):
        readme += ["", "Of the files marked *or* one is enough: they have the same effect as a file above them."]
    if any(LAUNCHER in need for one in whole for file in _files(one) for need in file.needs):
        readme += ["", "`hugewise-exec` lies in the folder of `hugewise`. For files that need it, install it once:", ""]
        readme += _quoted((f"install -D -m 755 FOLDER/hugewise-exec {LAUNCHER}",))
    try:
        with _emptied(output) as held:
            for number, one in enumerate(whole, 1):
                below = f"{number}-{_slug(one)}" if len(whole) > 1 else ""
                for file in _files(one):
                    path = f"{below}/{_GUEST if file.on == 'guest' else ''}/{file.path}"
                    _put(held, path, with_evidence(file, (*one.found, *one.evidence)).content, file.kind)
                readme += ["", *_section(one, below, results.settings)]
                told.append(f"{', '.join(one.cells)}: {one.arm}: {output / below}")
            for one in settings:
                if one.deployment is None:
                    told.append(f"{', '.join(one.cells)}: no files: {one.why}")
                    readme += ["", f"## {_title(one.cells)}", "", "No files:", "", *_quoted((one.why,))]
            told += [] if name is None else list(_of_start(whole, name, start))
            _put(held, _README, "\n".join([*readme, ""]), "tuned")
    except OSError as error:
        raise StorageError(
            f"{error.filename or output}: the files cannot be written: {error.strerror or error}",
            hint="name another folder with --output",
        ) from error
    return told


def _files(setting: Recommended) -> tuple[DeployedFile, ...]:
    return setting.deployment.files if setting.deployment is not None else ()


def must_be_empty(output: Path) -> None:
    """Have the folder, so that nothing is measured for files that could not be written. Raises like `write_files`."""
    with _emptied(output):
        pass


def _emptied(output: Path) -> DirFd:
    from hugewise.report.write import held_folder  # noqa: PLC0415  (fonts and figures behind it)

    held = held_folder(output, "what is to be deployed")
    root = Path("/").stat()
    if (held.status().st_dev, held.status().st_ino) == (root.st_dev, root.st_ino):
        held.close()
        raise UserError(f"--output {output}: that would put the files into force", hint="name a new folder")
    if held.names():
        held.close()
        raise UserError(f"--output {output}: there is something in that folder", hint="name a new one, or an empty one")
    return held


def _put(held: DirFd, path: str, content: str, kind: str) -> None:
    its = held.status()
    theirs = os.geteuid() == 0 and its.st_uid != 0  # whom root works for
    mode = 0o755 if kind in ("script", "launcher") else 0o644
    account = (its.st_uid, its.st_gid) if theirs else (None, None)
    held.put(path.lstrip("/"), content.encode("utf-8", "surrogateescape"), mode, *account)


def _elsewhere(runs: Sequence[Results]) -> Iterator[str]:
    here = machine_id(LocalHost())
    if any(here is None or run.host.get("machine") != here for run in runs):
        yield "Not measured on this host: know where the run comes from, and read each file before it is used."


def _evidence(results: Results) -> tuple[str, ...]:
    last = results.integrity.hash if results.integrity is not None else None
    return (
        f"Run {results.run} of the study {results.study}, by hugewise",
        f"SHA-256 of its seed: {results.seed_hash}",
        *((f"last hash of its records: {last}",) if last else ()),
    )


def _for_unit(setting: Recommended, name: str | None, start: UnitStart | None) -> Recommended:
    if name is None or setting.deployment is None:
        return setting
    files = tuple(of_unit(file, name) for file in setting.deployment.files)
    if start is not None:
        files = tuple(completed(file, start) for file in files)
    return msgspec.structs.replace(setting, deployment=msgspec.structs.replace(setting.deployment, files=files))


def _of_start(whole: Sequence[Recommended], name: str, start: UnitStart | None) -> Iterator[str]:
    units = [file for one in whole for file in _files(one) if file.kind == "unit" and LAUNCHER in file.content]
    if not units:
        return
    if start is None:
        yield f"{name}: this host has no such service: its ExecStart= in the drop-in is to be compared, or completed"
    elif any(BY_HAND in need for file in units for need in file.needs):
        yield f"{name}: its ExecStart= could not be taken over: the drop-in says why, and what to complete"
    else:
        yield f"{name}: the drop-in has its own ExecStart= ({'; '.join(place for place, _ in start.starts)})"


def _section(setting: Recommended, below: str, former: Mapping[str, str]) -> Iterator[str]:
    assert setting.deployment is not None
    yield f"## {_title(setting.cells)}"
    yield ""
    yield from _quoted((*setting.found, setting.deployment.note))
    for mine in setting.deployment.files:
        where = f"{below}/{_GUEST}" if mine.on == "guest" else below
        yield ""
        guest = " (in the guest)" if mine.on == "guest" else ""
        yield f"### {'or ' if mine.instead else ''}{printable(mine.path)}{guest}"
        yield ""
        yield f"{mine.scope}; {printable(mine.label)}."
        if mine.needs:
            yield f"Needs: {'; '.join(map(printable, mine.needs))}."
        steps = (
            ("put it there", (_copied(mine, where),)),
            ("have it in force", mine.apply),
            ("check", (mine.check,)),
            ("undo", mine.undo),
            ("as it stood when the run began", tuple(_former(mine, former))),
        )
        for title, lines in steps:
            if lines:
                yield ""
                yield f"{title}:"
                yield ""
                yield from _quoted(lines)


def _copied(file: DeployedFile, where: str) -> str:
    mode = "755" if file.kind in ("script", "launcher") else "644"
    source = f"{where}{file.path}".lstrip("/")
    return f"install -D -m {mode} {shell_words((source, file.path))}"


def _former(file: DeployedFile, former: Mapping[str, str]) -> Iterator[str]:
    for path in file.sets if file.on == "machine" else ():
        try:
            yield f"echo {plain(former[path])} > {plain(path)}"
        except (KeyError, ValueError):
            continue


def _quoted(lines: tuple[str, ...]) -> Iterator[str]:
    return (f"    {printable(line)}" for line in lines)


def _title(cells: tuple[str, ...]) -> str:
    return re.sub(r"[^\w =.,:+-]", "_", printable(", ".join(cells)))


def _slug(setting: Recommended) -> str:
    return re.sub(r"[^A-Za-z0-9=_]+", "-", f"{setting.arm}-{setting.cells[0]}")[:_LONGEST_NAME].strip("-")
