"""One meaning for each word: no two public types of one name, and no public name with a word that others use."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
_made = importlib.util.spec_from_file_location("words", ROOT / "tools/words.py")
assert _made is not None and _made.loader is not None
words = importlib.util.module_from_spec(_made)
_made.loader.exec_module(words)


def test_the_page_is_current() -> None:
    stored = (ROOT / "docs/concepts/words.md").read_text(encoding="utf-8")
    assert stored == "".join(f"{line}\n" for line in words.words()), (
        "write it again: python tools/words.py > docs/concepts/words.md"
    )


def test_no_two_public_types_have_one_name() -> None:
    places = defaultdict(list)
    for name, module, _ in words.defined():
        places[name].append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_public_names_have_the_projects_words() -> None:
    found = []
    for path in sorted((ROOT / "src/hugewise").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                parts = " ".join(re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", node.name)).lower()
                found += [
                    f"{path.relative_to(ROOT)}: {node.name}: say {own}"
                    for other, own in words.INSTEAD.items()
                    if re.search(rf"\b{other}s?\b", parts)
                ]
    assert found == []
