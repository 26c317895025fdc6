"""Provisioning: what goes to a host, held against its hash there, and what stays."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from hugewise.errors import HostLostError, UserError
from hugewise.fleet import provision
from hugewise.fleet.engine import CommandOutput
from hugewise.fleet.inventory import HostEntry, Inventory, parse


class Carried:
    """Commands of a host that are done here; Python and pip are only written down."""

    def __init__(self) -> None:
        self.words: list[list[str]] = []
        self.there: list[str] = []
        self.fails: str | None = None
        self.spoils = False

    def __call__(
        self, entry: HostEntry, words: Sequence[str], data: bytes = b"", *, timeout: float, most: int
    ) -> CommandOutput:
        self.words.append(list(words))
        if self.fails is not None and self.fails in words:
            return CommandOutput(1, b"", "No module named ensurepip")
        if words[0] in ("mktemp", "dd", "sha256sum", "rm") or "-c" in words:
            data = data[:-1] if self.spoils else data
            done = subprocess.run(words, input=data, capture_output=True, check=False)
            return CommandOutput(done.returncode, done.stdout, done.stderr.decode())
        if words[-1].endswith(".whl"):
            self.there = sorted(path.name for path in Path(words[-1]).parent.iterdir())
        if "venv" in words:
            Path(words[-1]).mkdir(exist_ok=True)
            (Path(words[-1]) / "pyvenv.cfg").write_text("prompt = 'hugewise'\n")
        return CommandOutput(0, b"", "")


@pytest.fixture
def wheels(tmp_path: Path) -> list[provision.HostWheel]:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "hugewise-0.1.0-py3-none-any.whl").write_bytes(b"hugewise")
    (folder / "numpy-2.1.0-cp311-cp311-manylinux_2_17_x86_64.whl").write_bytes(bytes(range(256)) * 1000)
    (folder / "README").write_text("no wheel")
    return provision.wheels_in(folder)


def hosts(tmp_path: Path) -> Inventory:
    text = f'[fleet]\ninstallation = "{tmp_path}/there"\n[[host]]\nname = "a"\nssh = "a"\n'
    return parse(text, "hosts.toml")


def test_wheels_go_there_whole_are_installed_without_an_index_and_removed(
    tmp_path: Path, wheels: list[provision.HostWheel]
) -> None:
    carried, lines = Carried(), list[str]()
    assert provision.provision(hosts(tmp_path), wheels, lines.append, carry=carried) == {}
    assert lines == [f"a: installed in {tmp_path}/there"]
    assert carried.there == [wheel.path.name for wheel in wheels]
    pip = [words for words in carried.words if "pip" in words]
    assert len(pip) == 2 and all("--no-index" in words and "--isolated" in words for words in pip)
    assert not Path(pip[0][-1]).parent.exists()
    assert provision.provision(hosts(tmp_path), wheels, lines.append, carry=carried) == {}  # over its own
    assert carried.words[-1] == [f"{tmp_path}/there/bin/hugewise", "--version"]


def test_what_came_otherwise_is_not_installed(tmp_path: Path, wheels: list[provision.HostWheel]) -> None:
    carried = Carried()
    carried.spoils = True
    failed = provision.provision(hosts(tmp_path), wheels, lambda _: None, carry=carried)
    assert "has not come there as it is here" in failed["a"]
    assert not any("pip" in words for words in carried.words)
    assert carried.words[-1][0] == "rm" and not Path(carried.words[-1][-1]).exists()


def test_what_a_host_lacks_is_said_with_its_cure(tmp_path: Path, wheels: list[provision.HostWheel]) -> None:
    carried = Carried()
    carried.fails = "-c"
    failed = provision.provision(hosts(tmp_path), wheels, lambda _: None, carry=carried)
    assert "No module named ensurepip" in failed["a"] and "apt install python3-venv" in failed["a"]
    assert len(carried.words) == 1


def test_nothing_of_others_is_overwritten(tmp_path: Path, wheels: list[provision.HostWheel]) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/theirs").write_text("")
    failed = provision.provision(hosts(tmp_path), wheels, lambda _: None, carry=Carried())
    assert "is no installation of hugewise" in failed["a"]
    (tmp_path / "there/theirs").unlink()
    (tmp_path / "there").chmod(0o777)
    failed = provision.provision(hosts(tmp_path), wheels, lambda _: None, carry=Carried())
    assert "can be changed by others" in failed["a"]
    system = parse('[fleet]\ninstallation = "/usr"\n[[host]]\nname = "a"\nssh = "a"\n', "hosts.toml")
    failed = provision.provision(system, wheels, lambda _: None, carry=Carried())
    assert "is a folder of the system" in failed["a"]


def test_a_host_that_is_not_reached_is_told(tmp_path: Path, wheels: list[provision.HostWheel]) -> None:
    def gone(*_: object, **__: object) -> CommandOutput:
        raise HostLostError("a: ssh a: No route to host")

    lines: list[str] = []
    assert provision.provision(hosts(tmp_path), wheels, lines.append, carry=gone) == {"a": "a: ssh a: No route to host"}


def test_a_folder_without_the_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 0 wheels of hugewise"):
        provision.wheels_in(tmp_path)
    with pytest.raises(UserError, match="No such file"):
        provision.wheels_in(tmp_path / "none")
