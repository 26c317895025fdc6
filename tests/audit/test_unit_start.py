"""How a service is started by its files: of folders that are written here, and of this host."""

from __future__ import annotations

from pathlib import Path

from hugewise.audit import systemd
from hugewise.audit.root import Root
from hugewise.audit.systemd import unit_start
from hugewise.deployment.program import UnitStart
from tests.requirements import need


def units(folder: Path, files: dict[str, str]) -> Root:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Root(folder)


def test_the_last_word_of_the_unit_and_its_drop_ins(tmp_path: Path) -> None:
    root = units(tmp_path, {
        "lib/systemd/system/demo.service": (
            "[Service]\nEnvironment=GLIBC_TUNABLES=glibc.pthread.rseq=0\nNoExecPaths=/\n"
            "ExecStart=/usr/bin/demo \\\n   --a '%i' $B\n"
        ),
        "etc/systemd/system/more.service": "[Service]\nExecStart=/bin/first\n",
        "etc/systemd/system/more.service.d/50-page-sizes.conf": (
            "[Service]\nExecStart=\nExecStart=-/usr/local/bin/hugewise-exec --pages off -- /bin/first\n"
        ),
        "etc/systemd/system/at@.service": "[Service]\nEnvironmentFile=-/etc/default/at\nExecStart=/bin/at %i\n",
        "etc/default/at": "GLIBC_TUNABLES=glibc.malloc.arena_max=2\n",
        "etc/systemd/system/by.service": "[Service]\nExecStart=/usr/bin/env GLIBC_TUNABLES=glibc.malloc.check=1 demo\n",
    })  # fmt: skip
    found = unit_start(root, "demo.service")
    assert found == UnitStart(
        name="demo.service",
        starts=(("/lib/systemd/system/demo.service:4", "/usr/bin/demo  --a '%i' $B"),),
        tunables="glibc.pthread.rseq=0",
        tuned_by="unit",
        tuned_at="/lib/systemd/system/demo.service:2",
        confined=True,
    )
    more = unit_start(root, "more.service")
    assert more is not None
    assert [text for _, text in more.starts] == ["-/usr/local/bin/hugewise-exec --pages off -- /bin/first"]
    for name, by, at in (
        ("at@7.service", "file", "/etc/default/at:1"),
        ("by.service", "command", "/etc/systemd/system/by.service:2"),
    ):
        one = unit_start(root, name)
        assert one is not None
        assert (one.name, one.tuned_by, one.tuned_at) == (name, by, at)
    assert unit_start(root, "absent.service") is None


def test_another_name_and_a_mask(tmp_path: Path) -> None:
    root = units(tmp_path, {"lib/systemd/system/real.service": "[Service]\nExecStart=/bin/real\n"})
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    (folder / "other.service").symlink_to("/lib/systemd/system/real.service")
    (folder / "gone.service").symlink_to("/dev/null")
    other = unit_start(root, "other.service")
    assert other is not None
    assert other.starts == (("/lib/systemd/system/real.service:2", "/bin/real"),)
    assert unit_start(root, "gone.service") is None


def test_the_services_of_this_host_are_read() -> None:
    root = Root()
    names = [name for name in systemd.service_files(root) if "@" not in name]
    need(bool(names), "services of systemd")
    found = [one for name in names if (one := unit_start(root, name)) is not None]
    assert any(one.starts for one in found)
    assert all(text for one in found for _, text in one.starts)
