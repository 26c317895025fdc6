"""A host as a folder, and `hugewise audit` on it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hugewise.cli.main import main
from tests.build.trees import Tree, healthy

Audit = Callable[..., tuple[int, str]]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A host on which no rule finds anything."""
    return healthy(tmp_path / "host")


@pytest.fixture
def audit(tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Audit:
    """`hugewise audit --root HOST` with more arguments: its exit status and what it prints, errors too."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def called(*more: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["audit", "--root", str(tree.path), *more])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return called
