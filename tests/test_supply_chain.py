"""Nothing is fetched but by its hash: what set-up, checks, tests and wheels call is read here, as make expands it."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.requirements import need_program

ROOT = Path(__file__).parents[1]
SCRIPTS = [*ROOT.glob("tools/*.sh"), *ROOT.glob("tools/**/*.py"), ROOT / ".ci" / "run"]
# What fetches, and one of the words that hold it to a lock.
HELD = {
    r"\bpip (install|sync)\b": ("--require-hashes", "--no-deps"),
    r"""\bcargo\b.{,20}\b(build|test|clippy|bench|run|install|metadata)\b""": ("--locked",),
    r"\bgo (build|run|install|get)\b": ("-mod=readonly",),
    r"\b(curl|wget)\b": ("sha256sum",),
}


def unheld(text: str) -> list[str]:
    """The calls in `text` that may fetch something that no lock names. A call may go over lines that end in `\\`."""
    text = re.sub(r"\\\n\s*", "", text)
    calls = re.sub(r'\b(need|say|echo) "[^"]*"', "", text).splitlines()  # what is only told
    return [
        call.strip()
        for call in calls
        for fetching, words in HELD.items()
        if not call.strip().startswith("#") and re.search(fetching, call) and not any(word in call for word in words)
    ]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_fetch_by_locks_alone(path: Path) -> None:
    assert unheld(path.read_text(encoding="utf-8")) == []


def test_so_does_make() -> None:
    make = [
        need_program("make", "make"),
        "--dry-run",
        "--always-make",
        "test",
        "check",
        "wheel",
        "go-tpc",
        "guest-probes",
    ]
    calls = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "cargo --quiet test --locked" in calls
    assert "cargo --quiet clippy --locked" in calls
    assert unheld(calls) == []


@pytest.mark.parametrize(
    "planted",
    [
        '"$PYTHON" -m pip install -q --target .tools uv',
        '"$uv" pip sync -q \\\n  --python .venv requirements.lock',
        "cargo build --release",
        "\t$(CARGO) fmt\n\tcargo --quiet test --manifest-path probe/Cargo.toml",
        '["cargo", "metadata"]',
        "go build -trimpath ./...",
        "curl -LsSf https://example.org/install.sh | sh",
    ],
)
def test_a_call_that_is_not_held_is_seen(planted: str) -> None:
    assert len(unheld(planted)) == 1


@pytest.mark.parametrize("name", ["requirements.lock", "tools/uv.txt"])
def test_every_package_has_a_version_and_hashes(name: str) -> None:
    entries = re.sub(r" *\\\n *", " ", (ROOT / name).read_text(encoding="utf-8")).splitlines()
    assert entries
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==[\w.+!]+( ; [^#]+?)?( --hash=sha256:[0-9a-f]{64})+", entry), entry


def test_every_module_of_go_has_the_hash_of_its_sources() -> None:
    wanted = re.findall(r"^(?:require )?\t?([\w./-]+) (v\S+)", (ROOT / "tools/go-tpc/go.mod").read_text(), re.MULTILINE)
    sums = {tuple(line.split()[:2]) for line in (ROOT / "tools/go-tpc/go.sum").read_text().splitlines()}
    assert ("github.com/pingcap/go-tpc", "v1.0.12") in wanted
    assert set(wanted) <= sums


def test_the_locked_crates_have_checksums() -> None:
    packages = tomllib.loads((ROOT / "probe" / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    own = ["hugewise-exec", "hugewise-ground", "hugewise-layout", "hugewise-probe", "hugewise-trace"]
    assert [package["name"] for package in packages if "checksum" not in package] == own
    assert not [package["name"] for package in packages if package["name"] in own and "source" in package]
