"""Files that others name: none of the kernel's own, and so many bytes of them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hugewise.audit import servers
from hugewise.audit.facts import RunningProcess, ServerConfig
from hugewise.audit.root import Root
from hugewise.audit.running import Seen
from hugewise.audit.servers import NamedFiles
from tests.requirements import need, need_own_namespaces, need_root


def redis(*argv: str, of: str | None = "the account 1000") -> Seen:
    process = RunningProcess(pid=10, name="redis-server", program="/usr/bin/redis-server")
    return Seen(process, "redis", ("redis-server", *argv), 1, False, of)


def running(root: Root, *seen: Seen) -> list[ServerConfig]:
    """Those of them that are servers, without those that only have files here."""
    return [each for each in servers.find_servers(root, seen, []) if each.pid is not None]


@pytest.mark.parametrize("path", ["/proc/kmsg", "/proc/self/environ", "/sys/kernel/mm/transparent_hugepage/enabled"])
def test_no_file_of_the_kernels_is_read_because_somebody_names_it(path: str, tmp_path: Path) -> None:
    """Read as root, the first one would be gone for the log of the system."""
    (tmp_path / "link").symlink_to(path)
    for named in (path, f"{tmp_path}/link", f"/..{path}"):
        root = Root()
        (found,) = running(root, redis(named))
        assert found.settings == {}
        (line,) = [each for each in root.unread() if each.startswith(f"{named}:")]
        assert line.startswith(f"{named}: no place of settings: a file system of the kind ")


def test_the_log_of_the_kernel_stays_for_who_logs_it() -> None:
    need_root()
    log = os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        Path("/dev/kmsg").write_text("hugewise test\n")
        running(Root(), redis("/proc/kmsg"))
        assert os.read(log, 1 << 20), "it was still there"
    finally:
        os.close(log)


def test_another_mount_of_the_same_is_the_same(tmp_path: Path) -> None:
    need_root()
    need_own_namespaces()
    script = (
        f"mount -t proc proc {tmp_path} && exec {shlex.quote(sys.executable)} -c '"
        "from hugewise.audit.servers import NamedFiles; from hugewise.audit.root import Root; root = Root();"
        f'print(NamedFiles(root).text("{tmp_path}/version"), root.unread())\''
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False, env=environment
    )
    need("permitted" not in done.stderr, "mounts of one's own")
    assert done.stdout.startswith("None ('") and "of the kind proc" in done.stdout, done.stderr


def test_an_account_names_so_much_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process of nobody's that looks like a server could have had 200 MiB read, word by word."""
    most = 256 << 10  # less than it is, for the sake of a short test
    monkeypatch.setattr("hugewise.audit.servers.MOST_NAMED", most)
    large = tmp_path / "large.conf"
    large.write_text(f"include {large}\n" * 100 + "x 'y\n" * 12_500)
    (tmp_path / "other.conf").write_text("disable-thp no\n")
    root = Root()
    hostile = [redis(str(large)) for _ in range(100)]
    found = running(root, *hostile, redis(f"{tmp_path}/other.conf", of="the account 1001"))
    assert found[-1].value("disable-thp") == "no"
    assert any(line.startswith(f"{large}: not read: too much was named beside it") for line in root.unread())
    files = NamedFiles(root)
    assert sum(len(files.data(str(large)) or b"") for _ in range(100)) <= most + large.stat().st_size
