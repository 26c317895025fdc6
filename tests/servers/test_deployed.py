"""The files of servers are read by the servers: no page setting is turned, and nobody's data are touched."""

import os
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from hugewise import unprivileged
from hugewise.beneath import DirFd
from hugewise.deployment import configuration
from hugewise.host import knob
from hugewise.host.local_host import LocalHost
from hugewise.inspection.look import Looker
from hugewise.model.pages import THP
from hugewise.workloads import _postgres
from tests.build import known
from tests.deployment.test_kinds import place
from tests.requirements import need, need_program
from tests.wait import until

pytestmark = pytest.mark.whole


def answered(ask: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    done = subprocess.run(ask, capture_output=True, text=True, check=False)
    return None if done.returncode else done


def test_redis_reads_its_file(reached: Path) -> None:
    server, client = need_program("redis-server", "redis-server"), need_program("redis-cli", "redis-tools")
    for disable_thp, word in ((False, "no"), (True, "yes")):
        included = place(configuration.redis(disable_thp=disable_thp), reached)
        config, socket = reached / "redis.conf", reached / "s"
        config.write_text(f'include {included}\nport 0\nunixsocket {socket}\nsave ""\ndir {reached}\n')
        running = subprocess.Popen([server, config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            ask = [client, "-s", str(socket), "CONFIG", "GET", "disable-thp"]
            answer = until(partial(answered, ask), "it answers")
            assert known(answer).stdout.split() == ["disable-thp", word]
        finally:
            running.terminate()
            running.wait(60)


def test_postgresql_reads_its_file(reached: Path) -> None:
    found = _postgres.find()
    need(found is not None, "PostgreSQL (apt install postgresql)")
    assert found is not None
    data = reached / "data"
    data.mkdir(mode=0o700)
    file = place(configuration.postgresql({"huge_pages": "on", "huge_page_size": "2048kB"}), reached)
    (data / "page-sizes.conf").write_bytes(file.read_bytes())
    (data / "postgresql.conf").write_text("huge_pages = try\ninclude 'page-sizes.conf'\n")
    if (who := unprivileged.account()) is not None:  # it refuses to run as root
        with DirFd.open(data) as held:
            held.hand_over(who.pw_uid, who.pw_gid)
    for name, value in (("huge_pages", "on"), ("huge_page_size", "2048")):
        done = unprivileged.run((found.program("postgres"), "-D", str(data), "-C", name), timeout=60)
        assert (done.status, done.stdout.strip()) == (0, value)


def test_memcached_reads_its_option(reached: Path) -> None:
    server = need_program("memcached", "memcached")
    host = LocalHost()
    need(knob.read(host, f"{THP}/enabled") != "never", f"{THP}/enabled that is not never: memcached refuses -L else")
    options = configuration.memcached().content.split()
    socket = reached / "m"
    whom = ("-u", "root") if os.geteuid() == 0 else ()
    running = subprocess.Popen([server, *whom, "-s", str(socket), "-m", "64", *options])
    try:
        until(lambda: socket.exists() or running.poll() is not None, "its socket is there")
        assert running.poll() is None, "memcached has ended"
        # Its items lie in one piece, with advice: so `-L` was heeded.
        advised = [mapping for mapping in Looker("smaps").look(running.pid).mappings if "hg" in mapping.flags]
        assert max((each.size for each in advised), default=0) >= 64 << 20
    finally:
        running.terminate()
        running.wait(60)
