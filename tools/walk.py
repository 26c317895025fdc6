"""Measure how far a reader walks who follows one parameter: from file to file, through the calls that pass it on.

    python tools/walk.py hugewise.session:run:study            module:function:parameter, below src/
    python tools/walk.py --src ../other/src pkg.module:Class.method:parameter

entry    a function, method or class that the value is handed to, once for each of its parameters that take it
stay     what is read in one file before another one is opened: entries, and callers that are gone back to after a call
return   a stay in a file that was left before; stays are files + returns

Read from the sources alone, which are not run. The value is the parameter, a name that is assigned it or loops over it,
and attributes and items of these. A call is followed where it names something of the package: by imports (those inside
functions too), by `self`, or as a method of a name whose class an annotation or `name = Class(...)` says. Calls come in
the order in which they are evaluated, depth first; what was entered once is not entered again.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """A file: its definitions by qualified name (`run`, `Class.method`), and what its imported names stand for."""

    name: str
    definitions: dict[str, Function | ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """Definition `name` of `module`, which the value enters as `parameter`."""

    module: str
    name: str
    parameter: str


class Package:
    """All modules below a folder of sources."""

    def __init__(self, src: Path) -> None:
        self.modules: dict[str, Module] = {}
        for path in sorted(src.rglob("*.py")):
            name = ".".join(path.relative_to(src).with_suffix("").parts).removesuffix(".__init__")
            self.modules[name] = _read(name, path)

    def find(self, module: Module, name: str, hops: int = 8) -> tuple[Module, str] | None:
        """Return the module and definition that a name, with dots or without, stands for within `module`."""
        if name in module.definitions:
            return module, name
        first, _, more = name.partition(".")
        if first not in module.imports or not hops:
            return None
        head, rest = f"{module.imports[first]}.{more}".rstrip("."), ""
        while head and head not in self.modules:
            head, _, last = head.rpartition(".")
            rest = f"{last}.{rest}".rstrip(".")
        return self.find(self.modules[head], rest, hops - 1) if head and rest else None

    def walk(self, start: Entry) -> Iterator[tuple[Entry, bool]]:
        """Yield all entries in order, and those that are gone back to (True)."""
        seen = {start}

        def steps(entry: Entry) -> Iterator[tuple[Entry, bool]]:
            yield entry, False
            for other in _Body(self, entry).followed():
                if other not in seen:
                    seen.add(other)
                    yield from steps(other)
                    yield entry, True

        return steps(start)


def _read(name: str, path: Path) -> Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = Module(name)
    parts = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            told = [(each.asname, each.name) if each.asname else (each.name.split(".")[0],) * 2 for each in node.names]
            module.imports |= dict(told)
        elif isinstance(node, ast.ImportFrom):
            origin = ".".join([*(parts[: len(parts) + 1 - node.level] if node.level else []), node.module or ""])
            module.imports |= {each.asname or each.name: f"{origin.strip('.')}.{each.name}" for each in node.names}
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef):
            module.definitions[node.name] = node
        if isinstance(node, ast.ClassDef):
            module.definitions |= {f"{node.name}.{each.name}": each for each in node.body if isinstance(each, Function)}
    return module


class _Body:
    """Uses of one parameter's value in a definition."""

    def __init__(self, package: Package, entry: Entry) -> None:
        self.package, self.module = package, package.modules[entry.module]
        self.node, self.owner = self.module.definitions[entry.name], entry.name.rpartition(".")[0]
        self.names, self.classes, before = {entry.parameter}, dict[str, str](), 0
        for node in ast.walk(self.node):
            if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
                name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
                self.classes[name] = ast.unparse(node.annotation).split(" | ")[0].strip("\"'")
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                self.classes |= {ast.unparse(target): ast.unparse(node.value.func) for target in node.targets}
        while before < len(self.names):
            before = len(self.names)
            for node in ast.walk(self.node):
                self._bind(node)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.For | ast.comprehension):
            targets, value = [node.target], node.iter
        elif isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            return
        if self._is_value(value):
            self.names |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}

    def _is_value(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return node.func.attr in ("items", "keys", "values") and self._is_value(node.func)
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            return self._is_value(node.value)
        return isinstance(node, ast.Name) and node.id in self.names

    def followed(self) -> Iterator[Entry]:
        """Yield the entries that the value is handed to, in order."""
        for call in _calls(self.node):
            owner, dot, name = ast.unparse(call.func).rpartition(".")
            owner = self.owner if owner in ("self", "cls") else self.classes.get(owner, owner)
            found = self.package.find(self.module, f"{owner}{dot}{name}")
            if found is None:
                continue
            module, name = found
            name = f"{name}.__init__" if f"{name}.__init__" in module.definitions else name
            places, keywords = _parameters(module.definitions[name])
            handed = [place for place, arg in enumerate(call.args) if self._is_value(arg)]
            taken = [places[min(place, len(places) - 1)] for place in handed if places]
            taken += [
                str(keyword.arg)
                for keyword in call.keywords
                if keyword.arg in keywords and self._is_value(keyword.value)
            ]
            yield from (Entry(module.name, name, each) for each in taken)


def _parameters(node: Function | ast.ClassDef) -> tuple[list[str], list[str]]:
    """Return the names of a definition's parameters: by place, and by keyword. A class has its fields."""
    if isinstance(node, ast.ClassDef):
        fields = [ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)]
        return fields, fields
    places = [each.arg for each in [*node.args.posonlyargs, *node.args.args]]
    places = places[1:] if places[:1] in (["self"], ["cls"]) else places
    keywords = places + [kwonlyarg.arg for kwonlyarg in node.args.kwonlyargs]
    return places + [each.arg for each in [node.args.vararg] if each is not None], keywords


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    # calls within arguments come first
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)
    if isinstance(node, ast.Call):
        yield node


def main() -> None:
    """Print the walk."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("start", metavar="MODULE:FUNCTION:PARAMETER")
    parser.add_argument("--src", type=Path, default=Path("src"))
    asked = parser.parse_args()
    module, name, parameter = asked.start.split(":")
    steps = list(Package(asked.src).walk(Entry(module, name, parameter)))
    stays = [(module, list(several)) for module, several in groupby(steps, key=lambda step: step[0].module)]
    for module, several in stays:
        told = [f"{entry.name}({entry.parameter})" for entry, back in several if not back]
        print(f"{module}: {', '.join(told) or 'back'}")
    counted = Counter(module for module, _ in stays)
    entries = sum(not back for _, back in steps)
    print(f"\n{entries} entries, {len(stays)} stays in {len(counted)} files, {len(stays) - len(counted)} returns")
    for module, times in counted.most_common():
        print(f"  {module}: {times} stays, {times - 1} returns")


if __name__ == "__main__":
    main()
