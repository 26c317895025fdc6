"""tools/setup.sh on machines that lack something: root has it installed, anybody else is given one line of apt.

The script is the real one; the programs that it finds are stubs in a PATH of its own. tools/bare.sh is the whole proof.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[1] / "tools" / "setup.sh"
NEW, OLD = "1.96.0+dfsg1-1~deb12u2", "1.85.0+dfsg3-1~deb12u3"
ALL = "python3 python3-pip ca-certificates gcc libc6-dev cargo-web"


class Bare:
    """A checkout in a machine with nothing but a shell and coreutils, whose apt knows a cargo-web of one version."""

    def __init__(self, folder: Path, cargo_web: str, uid: int) -> None:
        self.bin, self.log = folder / "bin", folder / "log"
        self.script = folder / "tools" / "setup.sh"
        self.script.parent.mkdir()
        self.bin.mkdir()
        shutil.copy(SETUP, self.script)
        shutil.copy(SETUP.parent / "uv.txt", self.script.parent)
        for name in ("launcher.sh", "guest-probe.sh"):
            shutil.copy(SETUP.parent / name, self.script.parent)
        of_coreutils = (
            "dirname",
            "cut",
            "sort",
            "head",
            "tr",
            "rm",
            "cp",
            "mkdir",
            "ln",
            "readlink",
            "stat",
            "mv",
            "chmod",
            "touch",
        )
        for name in ("sh", "sed", "cmp", *of_coreutils):
            (self.bin / name).symlink_to(shutil.which(name) or name)
        self.program("id", f"echo {uid}")
        known = {"cargo": "0.66.0+ds1-1", "cargo-web": cargo_web}
        cases = "".join(f"{name}) echo '  Candidate: {version}' ;; " for name, version in known.items())
        self.program("apt-cache", f"case $2 in {cases} esac")
        self.program("apt-get", f'echo "$@" >> {self.log}')

    def program(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def set_up(self, status: int = 1, certificates: str = "/nonexistent") -> str:
        """Run the script, which cannot end well where nothing is; what it said."""
        environment = {"PATH": str(self.bin), "SSL_CERT_FILE": certificates}
        done = subprocess.run([str(self.script)], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return done.stderr

    def equip(self, python: Path) -> None:
        """Nothing is missing, and uv makes the environment of that Python."""
        for name in ("cc", "python3"):
            self.program(name, "exit 0")
        self.program("uname", "echo x86_64")
        built, guest = "probe/target/launcher/release", "probe/target/guest/x86_64-unknown-linux-gnu/release"
        programs = (
            f"{built}/hugewise-exec {built}/libhugewise_layout.so {built}/libhugewise_trace.so {guest}/hugewise-probe"
        )
        builds = f"{{ mkdir -p {built} {guest}; touch {programs}; }}"
        self.program("cargo", f"echo cargo {NEW.partition('+')[0]}; [ $1 != build ] || {builds}")
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()
        self.program("uv", f"[ $1 != venv ] || {{ mkdir -p .venv/bin; ln -sf {python} .venv/bin/python; }}")

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture(autouse=True)
def _debian() -> None:
    from tests.requirements import need

    need(Path("/etc/debian_version").exists(), "Debian, or a system made of it")


def test_a_user_is_given_one_line_for_everything(tmp_path: Path) -> None:
    bare = Bare(tmp_path, NEW, 1000)
    assert bare.set_up() == f"hugewise: packages are missing: sudo apt update && sudo apt install {ALL}\n"
    assert bare.asked() == []


def test_root_has_it_installed_and_nothing_removed(tmp_path: Path) -> None:
    bare = Bare(tmp_path, NEW, 0)
    assert f"setup: installing with apt: {ALL}" in bare.set_up()
    assert bare.asked() == ["-q update", f"-q -y --no-install-recommends --no-remove install {ALL}"]


def test_what_apt_would_install_only_by_removing_others_is_told(tmp_path: Path) -> None:
    bare = Bare(tmp_path, NEW, 0)
    bare.program("apt-get", "case $* in *install*) echo 'E: Packages need to be removed' >&2; exit 100 ;; esac")
    said = bare.set_up()
    assert "E: Packages need to be removed" in said
    assert f"by hand, apt install {ALL}; or Rust from https://rustup.rs" in said


def test_only_what_is_missing_is_named(tmp_path: Path) -> None:
    bare = Bare(tmp_path, NEW, 1000)
    bare.program("cc", "exit 0")
    bare.program("python3", "exit 0")
    bare.program("cargo", "echo cargo 1.88.0")
    assert bare.set_up().endswith("sudo apt install ca-certificates\n")


def test_an_old_cargo_is_replaced_by_a_newer_of_apt(tmp_path: Path) -> None:
    bare = Bare(tmp_path, NEW, 1000)
    bare.program("cargo", "echo cargo 1.87.9")
    assert "cargo-web" in bare.set_up()


def test_where_apt_has_none_that_is_new_enough_rust_is_told_by_its_own_way(tmp_path: Path) -> None:
    bare = Bare(tmp_path, OLD, 1000)
    for name in ("cc", "python3", "uv"):
        bare.program(name, "exit 0")
    bare.program("cargo", "echo cargo 1.65.0")
    told = bare.set_up()
    assert "cargo-web" not in told


def test_rustup_is_left_to_its_user(tmp_path: Path) -> None:
    bare = Bare(tmp_path, NEW, 0)
    for name in ("cc", "python3", "uv", "rustup"):
        bare.program(name, "exit 0")
    bare.program("cargo", "echo cargo 1.65.0")
    bare.set_up()
    assert not [line for line in bare.asked() if "cargo" in line]


@pytest.mark.parametrize("uid", [0, 1000])
def test_a_python_that_only_root_can_reach_is_told_at_the_end_with_the_cure(reached: Path, uid: int) -> None:
    bare = Bare(reached, NEW, uid)
    python = reached / "home" / "managed" / "python3.11"
    bare.equip(python)
    assert bare.set_up(0, __file__).endswith("setup: ready: .venv/bin/hugewise\n")
    (reached / "home").chmod(0o700)
    ended = bare.set_up(0, __file__).partition("setup: ready: .venv/bin/hugewise\n")[2].splitlines()
    if uid:
        assert ended == [], "an ordinary user sets it up for themselves"
        return
    assert ended == [
        f"setup: only root can run it: its Python ({python}) is in {reached}/home, which other accounts may not enter",
        "setup:   cure, where they should: rm -r .venv && PYTHON=/usr/bin/python3 make setup",
    ]
    reached.chmod(0o750)
    assert f"only root can run it: other accounts may not enter {reached}\n" in bare.set_up(0, __file__)
