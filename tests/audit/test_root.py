"""A host's files: within the folder, regular, so large; no link of another account to what is not its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hugewise.audit.root import MOST, Root
from tests.requirements import need_root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    (tmp_path / "host/etc").mkdir(parents=True)
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "host/etc/inside").write_text("inside\n")
    return Root(tmp_path / "host")


def link(root: Root, name: str, target: str) -> str:
    (root.folder / "etc" / name).symlink_to(target)
    return f"/etc/{name}"


@pytest.mark.parametrize(
    "target", ["/etc/inside", "inside", "../etc/inside", "../../../../etc/inside", "//etc/./inside"]
)
def test_a_link_leads_within_the_folder(root: Root, target: str) -> None:
    assert root.text(link(root, "link", target)) == "inside\n"
    assert root.real("/etc/link") == "/etc/inside"
    assert root.target("/etc/link") == target


@pytest.mark.parametrize("target", ["../../secret", "/../secret", "/secret"])
def test_no_link_and_no_path_leads_out(root: Root, target: str) -> None:
    assert root.text(link(root, "link", target)) is None
    assert root.text("/../secret") is None
    assert root.text("../../../../secret") is None


def test_a_circle_of_links_ends(root: Root) -> None:
    link(root, "a", "b")
    assert root.text(link(root, "b", "a")) is None
    assert root.unread() == ("/etc/b: Too many levels of symbolic links",)


def test_a_pipe_does_not_block_and_is_no_file(root: Root) -> None:
    os.mkfifo(root.folder / "etc/pipe")
    assert root.text("/etc/pipe") is None
    assert root.listed("/etc/pipe") is None
    assert root.unread() == ("/etc/pipe: not a regular file",)


def test_a_folder_is_no_file_and_a_file_no_folder(root: Root) -> None:
    assert root.text("/etc") is None
    assert root.listed("/etc/inside") is None
    assert root.listed("/nowhere") is None and root.names("/nowhere") == []
    assert root.names("/etc") == ["inside"]


def test_what_is_too_large_is_none_and_said(root: Root) -> None:
    (root.folder / "etc/large").write_bytes(b"x" * (MOST + 1))
    assert root.text("/etc/large") is None
    assert root.unread() == (f"/etc/large: larger than {MOST:,} bytes",)
    assert len(root.data("/etc/large", 10, whole=False) or b"") == 10


def test_what_is_not_there_is_not_told(root: Root) -> None:
    assert (root.text("/etc/none"), root.text("/etc/inside/none"), root.status("/x"), root.target("/x")) == (None,) * 4
    assert root.unread() == ()


def test_it_writes_nothing(root: Root) -> None:
    with pytest.raises(OSError, match="Read-only"):
        root.write("/etc/inside", "x")
    assert not root.writable("/etc/inside")


def test_names_that_are_no_text_pass(root: Root) -> None:
    (root.folder / "etc" / os.fsdecode(b"\xff\xfe")).write_text("x")
    assert len(root.names("/etc")) == 2
    for path in ("/etc/a\0b", "/etc/\ud800", "/" + "x" * 5000):
        assert root.text(path) is None


def test_root_does_not_follow_a_link_of_another_account_to_what_is_not_its_own(root: Root) -> None:
    need_root()
    shadow = root.folder / "etc/shadow"
    shadow.write_text("root:secret")
    shadow.chmod(0o600)
    own = root.folder / "etc/own"
    own.write_text("own")
    os.chown(own, 65534, 65534)
    for name, target in (("theirs", "shadow"), ("good", "own")):
        os.chown(root.folder / link(root, name, target).lstrip("/"), 65534, 65534, follow_symlinks=False)
    assert root.text("/etc/theirs") is None
    assert root.text("/etc/good") == "own"
    assert root.unread() == ("/etc/theirs: a link of another account to what is not its own",)
