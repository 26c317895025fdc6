"""Processes and servers: what is kept of them, includes of their files, those that end meanwhile, containers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hugewise.audit.collect import collect
from hugewise.audit.facts import HostFacts, ServerConfig
from hugewise.audit.root import Root
from hugewise.audit.running import processes
from tests.audit.conftest import Audit
from tests.build.trees import Tree
from tests.fuzz.inputs import in_time
from tests.requirements import need_root

SECRET = "hunter2"  # noqa: S105  (it is looked for in what is printed)


def facts(tree: Tree) -> HostFacts:
    return collect(Root(tree.path))


def server(tree: Tree, kind: str) -> ServerConfig:
    (found,) = [each for each in facts(tree).servers if each.kind == kind]
    return found


def owned(tree: Tree, pid: int, account: int) -> None:
    """The process is that account's."""
    place = tree.at(f"/proc/{pid}/status")
    place.write_text(place.read_text().replace("Uid:\t0\t0\t0\t0", f"Uid:\t{account}\t0\t0\t0"))


def test_of_this_process_the_kernel_says_what_is_so() -> None:
    environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=1", "TOKEN": SECRET}
    child = subprocess.Popen(
        [sys.executable, "-c", "print('there', flush=True); input()", SECRET],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == b"there\n"
        (found,) = [each.process for each in processes(Root()) if each.process.pid == child.pid]
        assert [(one.key, one.value) for one in found.environment] == [
            ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=1")
        ]
        assert (found.secure, found.static, found.thp_enabled is not None) == (False, False, True)
        assert "glibc" in (found.libraries or ())
        assert found.program == str(Path(sys.executable).resolve())
        assert SECRET not in repr(found)
    finally:
        child.communicate(b"\n")


def test_nothing_of_environments_and_command_lines_but_known_settings_is_printed(tree: Tree, audit: Audit) -> None:
    tree.process(
        200,
        "java",
        argv=["java", "-Dpassword=" + SECRET, "-XX:+UseLargePages", SECRET],
        environ={
            "DB_PASSWORD": SECRET,
            "JAVA_TOOL_OPTIONS": f"-Dkey={SECRET} -XX:LargePageSizeInBytes=2m",
            "MALLOC_CONF": f"{SECRET} x",
        },
        unit="app.service",
    )
    tree.put("/etc/mysql/my.cnf", f"[mysqld]\npassword={SECRET}\nlarge_pages={SECRET};x\n[client]\npassword={SECRET}\n")
    tree.put("/etc/redis/redis.conf", f"requirepass {SECRET}\ndisable-thp no\n")
    for more in ((), ("--json",)):
        _, said = audit(*more)
        assert SECRET not in said
        assert "UseLargePages" in said and "disable-thp" in said


def test_a_long_variable_takes_no_longer_than_it_is(tree: Tree) -> None:
    """A pattern that tries each place anew took half a minute of root's for one process of anybody's."""
    tree.process(200, "slow")
    tree.put("/proc/200/environ", (b"GLIBC_TUNABLES=glibc." + b"huge" * 16000 + b"\nx\0") * 15)
    with in_time():
        (found,) = [each for each in facts(tree).processes if each.pid == 200]
    assert [one.value for one in found.environment] == ["(set; not shown)"]


def test_processes_of_an_account_are_read_within_limits(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (200, 201, 202):
        tree.process(pid, "redis-server", environ={"X": "y" * 10_000, "MALLOC_CONF": "thp:always"})
        owned(tree, pid, 1000)
    tree.process(203, "redis-server", environ={"MALLOC_CONF": "thp:always"})
    owned(tree, 203, 1001)
    monkeypatch.setattr("hugewise.audit.running._MOST_OF_ONE", 15_000)
    found = facts(tree)
    assert [each.pid for each in found.processes if each.environment] == [200, 201, 203]
    assert found.unread[0].startswith("processes of the account 1000: they have too much to read")
    monkeypatch.setattr("hugewise.audit.running._MOST_OF_ALL", 1_000)
    tree.process(204, "redis-server", environ={"MALLOC_CONF": "thp:always"}, unit="redis.service")
    owned(tree, 204, 1000)
    assert [each.pid for each in facts(tree).processes if each.environment] == [200, 204]


@pytest.mark.parametrize("above", ["/user.slice/user-1000.slice/user@1000.service/x", "/system.slice/any.scope"])
def test_a_group_of_somebody_elses_is_no_service_of_the_systems(tree: Tree, audit: Audit, above: str) -> None:
    """A user's group of that name hid what is wrong with the service that does not run."""
    tree.service("late", "ExecStart=/usr/bin/app", "Environment=GLIBC_TUNABLES=glibc.malloc.hugetlb=2")
    tree.process(200, "x", group=f"{above}/late.service", environ={"MALLOC_CONF": "x"})
    status, said = audit("--traps")
    assert status == 3
    assert "late.service: glibc.malloc.hugetlb=2" in " ".join(said.split())


def test_the_service_of_a_container_manager_is_no_container(tree: Tree) -> None:
    tree.put("/data/postgresql.conf", "huge_pages = on\n")
    tree.process(300, "postgres", argv=["postgres", "-D", "/data"], unit="docker-postgres.service")
    assert server(tree, "postgresql").value("huge_pages") == "on"


def test_a_process_whose_first_thread_has_ended_is_there(tree: Tree) -> None:
    tree.process(301, "app", environ={"MALLOC_CONF": "thp:always"})
    for name in ("status", "environ"):
        tree.put(f"/proc/300/task/301/{name}", tree.at(f"/proc/301/{name}").read_bytes())
    tree.put("/proc/300/status", "Name:\tapp\nState:\tZ (zombie)\nPPid:\t1\n")
    assert 300 in {each.pid for each in facts(tree).processes}


def test_terminal_escapes_do_not_reach_the_terminal(tree: Tree, audit: Audit) -> None:
    tree.process(200, "evil\x1b[2J", environ={"MALLOC_CONF": "\x1b]0;x\x07"}, exe="/usr/bin/\x1b[31mx")
    tree.put("/etc/systemd/system/evil.service", "[Service]\nMemoryTHP=\x1b[2Jnever\nExecStart=/bin/\x1b[31m\n")
    for more in ((), ("--json",)):
        assert "\x1b" not in audit(*more)[1]


def test_a_process_that_ends_meanwhile_is_passed_over(tree: Tree) -> None:
    tree.process(300, "gone")
    for name in ("status", "maps"):
        tree.at(f"/proc/300/{name}").unlink()
    tree.put("/proc/301/cmdline", "")
    found = facts(tree)
    assert {each.pid for each in found.processes} == {1, 100} & {each.pid for each in found.processes}
    assert found.unread == ()


def test_a_user_is_told_what_cannot_be_read() -> None:
    need_root()
    collect(Root())  # what is imported lies where the account may not read
    os.seteuid(65534)
    try:
        found = collect(Root())
    finally:
        os.seteuid(0)
    (line,) = [line for line in found.unread if line.startswith("/proc/PID/environ: Permission denied (")]
    assert int(line.partition("(")[2].split()[0]) >= 1
    assert found.thp and found.pools


@pytest.mark.parametrize("where", ["file", "line"])
def test_postgresql_with_includes_and_what_overrides_them(tree: Tree, where: str) -> None:
    data = "/var/lib/pg"
    tree.put(
        f"{data}/postgresql.conf",
        "huge_pages = on\ninclude 'more.conf'\ninclude_dir 'conf.d'\nshared_buffers='1GB' # x\n",
    )
    tree.put(f"{data}/more.conf", "include 'postgresql.conf'\nhuge_page_size = 2MB\npassword = 'x'\n")
    tree.put(f"{data}/conf.d/a.conf", "HUGE_PAGES = off\n")
    tree.put(f"{data}/conf.d/.hidden.conf", "huge_pages = on\n")
    tree.put(f"{data}/postgresql.auto.conf", "shared_buffers = '2GB'\n")
    tree.put(f"{data}/PG_VERSION", "17\n")
    argv = [
        "/usr/bin/postgres",
        "-D",
        data,
        *(["-c", "huge_pages=try", "--shared-buffers=3GB"] if where == "line" else []),
    ]
    tree.process(300, "postgres", argv=argv)
    tree.process(301, "postgres", argv=["postgres: checkpointer"], parent=300)
    found = server(tree, "postgresql")
    assert found.version == "17"
    values = {key: one.value for key, one in found.settings.items()}
    assert values == (
        {"huge_pages": "try", "huge_page_size": "2MB", "shared_buffers": "3GB"}
        if where == "line"
        else {"huge_pages": "off", "huge_page_size": "2MB", "shared_buffers": "2GB"}
    )


def test_redis_that_wrote_over_its_words_is_known_by_its_service(tree: Tree) -> None:
    tree.service("kv", "ExecStart=/usr/bin/redis-server /etc/kv.conf --disable-thp no")
    tree.put("/etc/kv.conf", "include /etc/kv-more.conf\n")
    tree.put("/etc/kv-more.conf", 'disable-thp "yes"\n')
    tree.process(300, "redis-server", argv=["redis-server *:6379"], unit="kv.service")
    assert server(tree, "redis").settings["disable-thp"].value == "no"
    tree.service("kv", "ExecStart=/usr/bin/redis-server /etc/kv.conf")
    assert server(tree, "redis").settings["disable-thp"].where == "/etc/kv-more.conf:1"


def test_mysql_reads_its_groups_of_all_files(tree: Tree) -> None:
    tree.put("/etc/mysql/my.cnf", "[client]\nlarge-pages\n[mysqld-8.4]\nlarge_pages=0\n!includedir /etc/mysql/conf.d\n")
    tree.put("/etc/mysql/conf.d/z.cnf", "[mariadb]\nlarge-pages = ON\n")
    tree.put("/etc/mysql/conf.d/z.txt", "[mariadb]\nlarge-pages = OFF\n")
    tree.process(300, "mariadbd", exe="/usr/sbin/mariadbd", argv=["/usr/sbin/mariadbd", "--innodb-buffer-pool-size=1G"])
    found = server(tree, "mysql")
    assert {key: one.value for key, one in found.settings.items()} == {
        "large_pages": "ON",
        "innodb_buffer_pool_size": "1G",
    }


def test_the_files_of_a_container_are_not_this_hosts(tree: Tree) -> None:
    tree.put("/data/postgresql.conf", "huge_pages = on\n")
    argv = ["postgres", "-D", "/data", "-c", "shared_buffers=1GB"]
    tree.process(300, "postgres", argv=argv, group="/system.slice/docker-0123.scope")
    assert {key: one.value for key, one in server(tree, "postgresql").settings.items()} == {"shared_buffers": "1GB"}


def test_files_of_servers_at_rest(tree: Tree) -> None:
    tree.put("/etc/memcached.conf", "# x\n-m 64\n-L\n")
    tree.put(
        "/etc/mongod.conf", "storage:\n  wiredTiger:\n    engineConfig:\n      cacheSizeGB: 2 # of 8\nsecurity: x y\n"
    )
    found = {each.kind: {key: one.value for key, one in each.settings.items()} for each in facts(tree).servers}
    assert found == {"memcached": {"large-pages": "on"}, "mongodb": {"cacheSizeGB": "2"}}


def test_a_pipe_in_the_place_of_a_file_does_not_block(tree: Tree, audit: Audit) -> None:
    for path in ("/etc/redis/redis.conf", "/etc/mysql/my.cnf", "/etc/sysctl.d/a.conf", "/etc/systemd/system/p.service"):
        tree.at(path).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tree.at(path))
    _, said = audit()
    assert "/etc/redis/redis.conf: not a regular file" in " ".join(said.split())
