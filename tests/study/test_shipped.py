"""Studies that come with hugewise are known by their names: in a checkout, and where a wheel put them."""

import sys
from pathlib import Path

import pytest

from hugewise.errors import StudyError
from hugewise.study import load as shipped
from hugewise.study.load import load


@pytest.mark.parametrize("name", shipped.names())
def test_a_study_is_known_by_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(Path(name)).name == name


def test_a_file_of_that_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").write_text("format = ")
    with pytest.raises(StudyError, match="is not TOML"):
        load(Path("demo"))


@pytest.mark.parametrize("name", ["demo.toml", "studies/demo", "../studies/demo", "no-such", "", ".", "*"])
def test_nothing_else_is_a_name(name: str) -> None:
    assert shipped.shipped_study(Path(name)) is None


def test_a_wheel_has_them_beside_its_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "lib/python3/site-packages/hugewise/study/shipped.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert (shipped.checkout(), shipped.names()) == (None, [])
    folder = tmp_path / "share" / "hugewise" / "studies"
    folder.mkdir(parents=True)
    (folder / "demo.toml").touch()
    assert shipped.shipped_study(Path("demo")) == folder / "demo.toml"
