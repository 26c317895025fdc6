"""What the audit reads of a host: files within limits, files that others name, processes, servers and containers."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hugewise.audit import servers
from hugewise.audit.collect import collect
from hugewise.audit.facts import HostFacts, RunningProcess, ServerConfig
from hugewise.audit.root import MOST, Root
from hugewise.audit.running import Seen, processes
from hugewise.audit.servers import NamedFiles
from tests.audit.conftest import Audit
from tests.build.trees import Tree
from tests.fuzz.inputs import in_time
from tests.requirements import need, need_own_namespaces, need_root


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


def test_what_is_no_file_or_too_large_is_said_and_what_is_not_there_is_not(root: Root) -> None:
    assert root.text("/etc") is None
    assert root.listed("/etc/inside") is None
    assert root.listed("/nowhere") is None and root.names("/nowhere") == []
    assert root.names("/etc") == ["inside"]
    assert (root.text("/etc/none"), root.text("/etc/inside/none"), root.status("/x"), root.target("/x")) == (None,) * 4
    assert [line for line in root.unread() if not line.startswith("/etc: ")] == []
    os.mkfifo(root.folder / "etc/pipe")  # nobody waits for it
    assert root.text("/etc/pipe") is None
    assert root.listed("/etc/pipe") is None
    (root.folder / "etc/large").write_bytes(b"x" * (MOST + 1))
    assert root.text("/etc/large") is None
    told = ("/etc/pipe: not a regular file", f"/etc/large: larger than {MOST:,} bytes")
    assert set(told) <= set(root.unread())
    assert len(root.data("/etc/large", 10, whole=False) or b"") == 10


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
        (found,) = [process.process for process in processes(Root()) if process.process.pid == child.pid]
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
        (found,) = [process for process in facts(tree).processes if process.pid == 200]
    assert [one.value for one in found.environment] == ["(set; not shown)"]


def test_processes_of_an_account_are_read_within_limits(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (200, 201, 202):
        tree.process(pid, "redis-server", environ={"X": "y" * 10_000, "MALLOC_CONF": "thp:always"})
        owned(tree, pid, 1000)
    tree.process(203, "redis-server", environ={"MALLOC_CONF": "thp:always"})
    owned(tree, 203, 1001)
    monkeypatch.setattr("hugewise.audit.running._MOST_OF_ONE", 15_000)
    found = facts(tree)
    assert [process.pid for process in found.processes if process.environment] == [200, 201, 203]
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


def test_a_process_whose_first_thread_has_ended_is_there(tree: Tree) -> None:
    tree.process(301, "app", environ={"MALLOC_CONF": "thp:always"})
    for name in ("status", "environ"):
        tree.put(f"/proc/300/task/301/{name}", tree.at(f"/proc/301/{name}").read_bytes())
    tree.put("/proc/300/status", "Name:\tapp\nState:\tZ (zombie)\nPPid:\t1\n")
    assert 300 in {process.pid for process in facts(tree).processes}


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
    assert {process.pid for process in found.processes} == {1, 100} & {each.pid for each in found.processes}
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
    tree.process(300, "postgres", argv=argv, unit="docker-postgres.service")  # of a container manager: no container
    assert server(tree, "postgresql").value("huge_pages") == "on"


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


JAVA = "/usr/bin/java"


@pytest.mark.parametrize(
    ("lines", "files", "settings"),
    [
        ((f"ExecStart={JAVA} -XX:+UseLargePages -jar a.jar -XX:-UseLargePages",), {}, {"UseLargePages": "on"}),
        (
            ('Environment="JAVA_OPTS=-Xmx4g -XX:+UseLargePages"', f"ExecStart={JAVA} $JAVA_OPTS -jar a.jar"),
            {},
            {"Xmx": "4g", "UseLargePages": "on"},
        ),
        (
            ("EnvironmentFile=-/etc/default/app", f"ExecStart={JAVA} -cp a:b ${{MODE}} Main"),
            {"/etc/default/app": "# of app\nMODE='-XX:+UseTransparentHugePages'\n"},
            {"UseTransparentHugePages": "on"},
        ),
        (
            (f"ExecStart=/bin/sh -c 'cd /srv && exec {JAVA} -XX:+UseLargePages -XX:MaxHeapSize=2g -jar a.jar'",),
            {},
            {"UseLargePages": "on", "Xmx": "2g"},
        ),
        (
            ("Environment=OPTS=-XX:+UseZGC", f'ExecStart=/bin/bash -lc "{JAVA} $OPTS ${{NONE:--XX:+UseLargePages}} M"'),
            {},
            {"UseZGC": "on", "UseLargePages": "on"},
        ),
        (
            ("Environment=JAVA_OPTS=-XX:+UseLargePages", "ExecStart=/srv/run.sh"),
            {"/srv/run.sh": "#!/usr/bin/env bash\nset -e\nexec java $JAVA_OPTS -Xmx1g \\\n  -jar /srv/a.jar\n"},
            {"UseLargePages": "on", "Xmx": "1g"},
        ),
        (("Environment=CATALINA_OPTS=-XX:+UseLargePages", "ExecStart=/opt/startup"), {}, {"UseLargePages": "on"}),
        (("Environment=JAVA_HOME=/opt/jdk", "ExecStart=/opt/startup"), {}, {}),
        (
            (
                "Environment=_JAVA_OPTIONS=-XX:-UseLargePages JAVA_TOOL_OPTIONS=-Xmx8g",
                f"ExecStart={JAVA} -Xmx2g -XX:+UseLargePages M",
            ),
            {},
            {"Xmx": "2g", "UseLargePages": "off"},
        ),
        (
            (f"ExecStart={JAVA} @/srv/jvm.options -jar a.jar",),
            {"/srv/jvm.options": "# heap\n-Xmx3g\n-XX:+UseTransparentHugePages -ea\n"},
            {"Xmx": "3g", "UseTransparentHugePages": "on"},
        ),
        ((f"ExecStart={JAVA} -XX:VMOptionsFile=/o M",), {"/o": "-XX:+UseLargePages\n"}, {"UseLargePages": "on"}),
        ((f"ExecStart=:{JAVA} $OPTS -Xmx1g M",), {}, {}),
        *(
            ((f"ExecStart={before} {JAVA} -XX:+UseLargePages M",), {}, {"UseLargePages": "on"})
            for before in (
                "/usr/bin/sudo -u app",
                "/usr/sbin/runuser -u app --",
                "/usr/bin/timeout -k 5 1h",
                "/usr/bin/numactl --membind=0 /usr/bin/nice -n 5",
            )
        ),
    ],
)
def test_options_of_java_wherever_they_stand(
    lines: tuple[str, ...], files: dict[str, str], settings: dict[str, str], tree: Tree
) -> None:
    for path, text in files.items():
        tree.put(path, text)
    tree.service("j", *lines)
    found = [one for one in collect(Root(tree.path)).servers if one.unit == "j.service"]
    assert {key: one.value for server in found for key, one in server.settings.items()} == settings


def test_a_file_of_options_that_is_not_there_is_told(tree: Tree, audit: Audit) -> None:
    tree.service("j", f"ExecStart={JAVA} @/srv/jvm.options -jar a.jar")
    assert "/srv/jvm.options: j.service names it, and it is not there" in " ".join(audit()[1].split())


def test_postgresql_of_a_variable_is_read(tree: Tree) -> None:
    tree.put("/var/lib/pgsql/data/postgresql.conf", "huge_pages = on\n")
    tree.service("pg", "Environment=PGDATA=/var/lib/pgsql/data", "ExecStart=/usr/bin/postmaster -D ${PGDATA}")
    (server,) = [one for one in collect(Root(tree.path)).servers if one.unit == "pg.service"]
    assert server.value("huge_pages") == "on"
