"""Faults planted in the source, and whether the tests see them: do the tests of another layout still catch as much?

    python tools/faults.py draw OLD --seed 20261122 --count 100 > faults.json
    python tools/faults.py try OLD faults.json          # of each fault: caught, missed, or gone
    python tools/faults.py try NEW faults.json

A fault is one place in one function: a comparison turned, a condition negated, a constant moved by one, `and` for `or`,
a sign, a statement left out, two arguments swapped. They are drawn over all functions of OLD/src/hugewise and carried
over by the function's name and the text of the place, so that a function may have moved to another file; one that is
not found is gone, and listed. A fault counts as caught when a test fails that imports the function's module, of those
with such markers (`--marks`: the gate's), within `--seconds`; the test is named. With `--room` the tests of the
module's room are run: first those that import the module, then the others. The source is copied; nothing in OLD or NEW
is changed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_TURNED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
_MARKS = "not soak"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, above: str = "") -> Iterator[tuple[str, Function]]:
    """Yield every function with its dotted name within the module; inner functions belong to the outer one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield f"{above}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{above}{node.name}.")


def places(function: Function) -> Iterator[tuple[str, ast.AST]]:
    """Yield the places where a fault can be planted in a function: the kind of fault, and the node."""
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield "turned", node
        elif isinstance(node, ast.BoolOp):
            yield "and-or", node
        elif isinstance(node, ast.BinOp) and type(node.op) in _SIGNS and not isinstance(node.left, ast.Constant):
            yield "sign", node
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield "negated", node
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield "constant", node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield "left out", node
        if isinstance(node, ast.Call) and len(node.args) > 1 and not any(isinstance(a, ast.Starred) for a in node.args):
            yield "swapped", node


def break_it(kind: str, node: ast.AST) -> None:
    """Make the fault, in place."""
    if isinstance(node, ast.Compare):
        node.ops = [_TURNED[type(node.ops[0])]()]
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.BinOp):
        node.op = _SIGNS[type(node.op)]()
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value += 1
    elif isinstance(node, ast.Expr):
        node.value = ast.Constant(None)
    elif isinstance(node, ast.Call):
        node.args[:2] = reversed(node.args[:2])
    else:
        raise TypeError(kind)


def draw(root: Path, seed: int, count: int) -> list[dict[str, object]]:
    """`count` faults, each in a function of its own, drawn over functions (a long one is not likelier)."""
    found = []
    for path in sorted((root / "src/hugewise").rglob("*.py")):
        for name, function in functions(ast.parse(path.read_text(encoding="utf-8"))):
            texts = [(kind, ast.unparse(node)) for kind, node in places(function)]
            if texts:
                found.append((path.stem, name, texts))
    source = random.Random(seed)  # noqa: S311  (a draw that anybody can repeat)
    drawn = []
    for stem, name, texts in source.sample(found, count):
        at = source.randrange(len(texts))
        kind, text = texts[at]
        drawn.append({"module": stem, "function": name, "kind": kind, "text": text, "nth": texts[:at].count(texts[at])})
    return drawn


def planted(root: Path, fault: dict[str, object]) -> tuple[Path, str] | None:
    """Return the file of the fault in `root`, and its text with it; None where the function or the place is gone."""
    fitting = []
    for path in sorted((root / "src/hugewise").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name, function in functions(tree):
            if name.rpartition(".")[2] != str(fault["function"]).rpartition(".")[2]:
                continue
            same = [
                node for kind, node in places(function) if (kind, ast.unparse(node)) == (fault["kind"], fault["text"])
            ]
            if same:
                likeness = (name == fault["function"]) + (path.stem == fault["module"])
                fitting.append((likeness, path, tree, same))
    if not fitting:
        return None
    _, path, tree, same = max(fitting, key=lambda each: each[0])
    break_it(str(fault["kind"]), same[min(int(str(fault["nth"])), len(same) - 1)])
    return path, ast.unparse(ast.fix_missing_locations(tree))


def tests_of(root: Path, path: Path) -> list[str]:
    """Return the test files that import the module at `path`; where none does, those that import what imports it."""
    imports = _imports(root)
    wanted = {_module(root, path)}
    for _ in range(3):
        found = [
            str(file.relative_to(root)) for file, names in imports.items()
            if file.name.startswith("test_") and names & wanted
        ]  # fmt: skip
        if found:
            return found
        wanted |= {
            _module(root, file) for file, names in imports.items() if names & wanted and root / "src" in file.parents
        }
    return []


@functools.cache
def _imports(root: Path) -> dict[Path, set[str]]:
    return {file: _imported(file) for top in ("src", "tests") for file in sorted((root / top).rglob("*.py"))}


def _module(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root / "src").with_suffix("").parts).removesuffix(".__init__")


def _imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def tests_in_room(root: Path, path: Path) -> list[list[str]]:
    """Return the test files of the room of the module at `path`: those that import the module, and the others."""
    room = root / "tests" / path.relative_to(root / "src/hugewise").parts[0]
    every = [str(file.relative_to(root)) for file in sorted(room.rglob("test_*.py"))]
    importing = set(tests_of(root, path))
    return [[each for each in every if each in importing], [each for each in every if each not in importing]]


def attempt(root: Path, fault: dict[str, object], marks: str, seconds: int, *, room: bool) -> tuple[str, str]:
    """Return the outcome of the fault in `root`: caught, missed, late, untested or gone; and where, by which test."""
    found = planted(root, copy.deepcopy(fault))
    if found is None:
        return "gone", ""
    path, text = found
    where = str(path.relative_to(root))
    chosen = list(filter(None, tests_in_room(root, path) if room else [tests_of(root, path)]))
    if not chosen:
        return "untested", where
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "src"
        shutil.copytree(root / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        (source / path.relative_to(root / "src")).write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marks]
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        became = "untested"
        for files in chosen:
            try:
                done = subprocess.run(
                    [*command, *files], cwd=root, env=environment, capture_output=True, timeout=seconds, check=False,
                    start_new_session=True,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return "late", where  # not seen in time
            if done.returncode not in (0, 5):
                return "caught", f"{where} {_first_failure(done.stdout)}"
            became = "missed" if done.returncode == 0 else became
    return became, where


def _first_failure(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").splitlines()
    named = (line for line in lines if line.startswith(("FAILED ", "ERROR ")))
    return next(named, lines[-1] if lines else "it said nothing").partition(" - ")[0]


def main() -> None:
    """Draw, or try."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    drawing = verbs.add_parser("draw")
    drawing.add_argument("root", type=Path)
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=100)
    trying = verbs.add_parser("try")
    trying.add_argument("root", type=Path)
    trying.add_argument("faults", type=Path)
    trying.add_argument("--marks", default=_MARKS)
    trying.add_argument("--seconds", type=int, default=180)
    trying.add_argument("--room", action="store_true")
    asked = parser.parse_args()
    if asked.verb == "draw":
        print(json.dumps(draw(asked.root, asked.seed, asked.count), indent=1))
        return
    counts: dict[str, int] = {}
    for fault in json.loads(asked.faults.read_text(encoding="utf-8")):
        became, where = attempt(asked.root.resolve(), fault, asked.marks, asked.seconds, room=asked.room)
        counts[became] = counts.get(became, 0) + 1
        print(f"{became:9} {fault['function']} {fault['kind']}: {str(fault['text'])[:60]!r} {where}", flush=True)
    print(counts)


if __name__ == "__main__":
    main()
