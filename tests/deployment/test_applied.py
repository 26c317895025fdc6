"""Files to deploy, applied by what applies them without systemd as the first process: `hugewise verify` says then that
the program has what was promised, and what is undone is as before.

A drop-in's ExecStart= and Environment= are carried out by hand, as their quoting says.
"""

import os
import pwd
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hugewise.deployment import configuration
from hugewise.deployment.program import LAUNCHER, Destination, UnitFacts, for_program
from hugewise.errors import LockedError
from hugewise.host.local_host import LocalHost
from hugewise.host.pool import pool_folder
from hugewise.model.pages import THP, PageSizes
from hugewise.model.policy import DeployedFile, FileKind, Mechanism, Treatment
from hugewise.policies import discover
from tests.deployment.kept import Turn, kept_settings
from tests.deployment.test_kinds import one, place
from tests.deployment.test_quoting import of_systemd
from tests.inspection.running import SIZE, built
from tests.requirements import need, need_program, need_root
from tests.wait import until

pytestmark = pytest.mark.whole

ENABLED, HUGE = f"{THP}/enabled", f"{THP}/hugepages-2048kB/enabled"
POOL = f"{pool_folder(2 << 20)}/nr_hugepages"
NOBODY = 65534
WAIT_S = 120.0


@pytest.fixture
def turned() -> Iterator[Turn]:
    """Turns settings of this host, journalled; all of them are as before when the test has ended."""
    need_root()
    with ExitStack() as stack:
        try:
            turn = stack.enter_context(kept_settings())
        except LockedError as error:
            need(False, f"the lock of this host: {error}")
        yield turn


def files(policy: str, mechanism: Mechanism, words: tuple[str, ...] = ()) -> tuple[Treatment, tuple[DeployedFile, ...]]:
    """The files of a policy, for a program of these words and SIZE bytes of memory."""
    host = LocalHost()
    sizes = PageSizes.discover(host)
    found = discover(sizes)[policy]
    assert (why := found.missing(host, sizes, mechanism)) is None, why
    treatment = found.treatment(host, sizes, mechanism)
    where = Destination(policy=policy, words=words, environment=treatment.environment, facts=UnitFacts(252))
    pool = SIZE + (8 << 20)
    return treatment, (*for_program(treatment, where, pool), *found.deployment(sizes, treatment, pool).files)


def said(*words: str | Path) -> str:
    """What a tool says that applies a file."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def verified(pid: int, policy: str, *options: str) -> None:
    """What the user asks after the deployment: the exit status is 0."""
    verb = Path(sys.executable).with_name("hugewise")
    done = subprocess.run(
        [verb, "verify", str(pid), "--policy", policy, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def refused(pid: int, policy: str, *options: str) -> None:
    """The same program without the file does not have it."""
    with pytest.raises(AssertionError):
        verified(pid, policy, *options)


@contextmanager
def started(words: tuple[str, ...], environment: Mapping[str, str] | None = None, user: int = NOBODY) -> Iterator[int]:
    """A program of the tests' own, with its memory, by the words of an ExecStart=; its number."""
    clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(environment or {})}
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, env=clean, user=user, group=user, extra_groups=[], process_group=0
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", process.wait()
        yield process.pid
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        process.stdout and process.stdout.close()


@contextmanager
def serving(
    words: tuple[str, ...], ready: tuple[str, ...], account: str, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """A server, when it answers; its number."""
    known = pwd.getpwnam(account)
    clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(environment or {})}
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            words, env=clean, user=known.pw_uid, group=known.pw_gid, extra_groups=[], process_group=0,
            stdout=told, stderr=told, cwd="/",
        )  # fmt: skip
        try:
            end = time.monotonic() + WAIT_S
            while subprocess.run(ready, capture_output=True, check=False).returncode:
                if process.poll() is not None or time.monotonic() > end:
                    told.seek(0)
                    pytest.fail(f"no answer: {told.read().decode(errors='replace')[-2000:]}")
                time.sleep(0.1)
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder into which other accounts come."""
    with tempfile.TemporaryDirectory(prefix="hugewise-applied-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def program(folder: Path) -> str:
    return str(built(folder))


@pytest.fixture
def launcher() -> str:
    """The launcher, which a user has put where the files look for it."""
    found = Path(sys.executable).with_name("hugewise-exec")
    need(found.exists(), f"{found} (make setup)")
    return str(found)


def unit(file: DeployedFile, launcher: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words of a drop-in's last ExecStart=, and its variables."""
    words: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    for line in file.content.splitlines():
        name, _, value = line.partition("=")
        if name == "ExecStart" and value:
            program, _, rest = value.partition(" ")
            options, _, command = rest.partition(" -- ")
            words = (program, *of_systemd(options), "--", *of_systemd(command))
        elif name == "Environment":
            (assignment,) = of_systemd(value)
            variables |= dict([assignment.split("=", 1)])
    return tuple(launcher if word == LAUNCHER else word for word in words), variables


def test_a_wrapper_that_turns_pages_off(turned: Turn, program: str, launcher: str, folder: Path) -> None:
    words = (program, "first")
    _, made = files("base", "process", words)
    wrapper = place(one(made, "launcher"), folder)
    wrapper.write_text(wrapper.read_text().replace(LAUNCHER, launcher))
    wrapper.chmod(0o755)
    turned({ENABLED: "always", HUGE: "inherit"})
    with started(words) as without:
        refused(without, "base")
    with started((str(wrapper),)) as pid:
        verified(pid, "base")


def test_an_exec_start_that_turns_pages_off(turned: Turn, program: str, launcher: str) -> None:
    _, made = files("base", "process", (program, "first"))
    words, variables = unit(one(made, "unit"), launcher)
    turned({ENABLED: "always", HUGE: "inherit"})
    with started(words, variables) as pid:
        verified(pid, "base")


@pytest.mark.parametrize(
    "kind", ["sysctl", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("script", "tuned"))]
)
def test_a_drop_in_and_a_pool(turned: Turn, program: str, launcher: str, folder: Path, kind: FileKind) -> None:
    _, made = files("hugetlb-2m", "process", (program, "malloc"))
    _, variables = unit(one(made, "unit"), launcher)
    assert variables == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"}
    with started((program, "malloc"), variables) as without:
        refused(without, "hugetlb-2m")  # nothing is in the pool yet
    turned({POOL: "1"})
    file = place(one(made, kind), folder)
    if kind == "sysctl":
        said(need_program("sysctl", "procps"), f"--load={file}")
    elif kind == "script":
        said("sh", file)
    else:  # what tuned's plug-in for sysfs does with each line; no tuned is here
        for line in file.read_text().partition("[sysfs]")[2].split():
            path, _, value = line.partition("=")
            Path(path).write_text(value)
    with started((program, "malloc"), variables) as pid:
        verified(pid, "hugetlb-2m")


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        ("thp", "script"),
        ("mthp-64k", "tmpfiles"),
        *(pytest.param("thp", kind, marks=pytest.mark.soak) for kind in ("tmpfiles", "tuned")),
        *(pytest.param("mthp-64k", kind, marks=pytest.mark.soak) for kind in ("script", "tuned")),
    ],
)
def test_settings_of_the_host(turned: Turn, program: str, folder: Path, policy: str, kind: FileKind) -> None:
    _, made = files(policy, "system")
    found = one(made, kind)
    script = one(made, "script")
    turned(dict.fromkeys(script.sets, "madvise"))  # journalled now: whatever becomes of this test, it is put back
    turned(dict.fromkeys(script.sets, "never"))
    with started((program, "plain")) as without:
        refused(without, policy)
    file = place(found, folder)
    if kind == "script":
        said("sh", file)
    elif kind == "tmpfiles":
        said(need_program("systemd-tmpfiles", "systemd"), "--create", file)
    else:
        for line in file.read_text().partition("[sysfs]")[2].split():
            path, _, value = line.partition("=")
            Path(path).write_text(value)
    with started((program, "plain")) as pid:
        verified(pid, policy)


def test_redis_reads_its_file(turned: Turn, folder: Path) -> None:
    server, client = need_program("redis-server", "redis-server"), need_program("redis-cli", "redis-tools")
    turned({ENABLED: "always", HUGE: "inherit"})
    for disabled, look in ((True, refused), (False, verified)):
        file = place(configuration.redis(disable_thp=disabled), folder)
        file.parent.chmod(0o755)
        path = folder / f"socket-{disabled}"
        folder.chmod(0o777)
        conf = folder / f"redis-{disabled}.conf"
        words = ("port 0", f"unixsocket {path}", "save ''", f"dir {folder}", "enable-debug-command local")
        conf.write_text("\n".join((f"include {file}", *words, "")))
        with serving((server, str(conf)), (client, "-s", str(path), "PING"), "nobody") as pid:
            said(client, "-s", path, "DEBUG", "POPULATE", "300000", "key", "200")
            look(pid, "thp", "--memory", "large")


def test_memcached_reads_its_file(turned: Turn, folder: Path) -> None:
    server = need_program("memcached", "memcached")
    option = configuration.memcached().content.strip()
    turned({ENABLED: "madvise", HUGE: "inherit"})
    for words, look in (((), refused), ((option,), verified)):
        path = folder / f"socket{len(words)}"
        folder.chmod(0o777)
        asked = (server, "-s", str(path), "-m", "128", *words)
        with serving(asked, ("test", "-S", str(path)), "nobody") as pid:
            filled(path, 400, 200_000)
            look(pid, "thp", "--memory", "large", "--share", "80%")


def filled(path: Path, items: int, size: int) -> None:
    """Items in memcached's memory, over its text protocol."""
    with socket.socket(socket.AF_UNIX) as to:
        # Its socket has its name a moment before it listens.
        until(lambda: to.connect_ex(str(path)) == 0, "memcached listens")
        for number in range(items):
            to.sendall(f"set key{number} 0 0 {size}\r\n".encode() + b"x" * size + b"\r\n")
            assert to.recv(64) == b"STORED\r\n"


def test_postgresql_reads_its_file(turned: Turn, folder: Path) -> None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    need(bool(found), "PostgreSQL (apt install postgresql-15)")
    known = pwd.getpwnam("nobody")
    data = folder / "data"
    data.mkdir()
    os.chown(data, known.pw_uid, known.pw_gid)
    subprocess.run(
        [found[-1] / "initdb", "-D", data, "-A", "trust", "-U", "nobody", "--no-sync"], user=known.pw_uid,
        group=known.pw_gid, extra_groups=[], check=True, capture_output=True, cwd="/",
    )  # fmt: skip
    file = place(configuration.postgresql({"huge_pages": "on", "huge_page_size": "2048kB"}), data)
    file.chmod(0o644)
    (data / "postgresql.conf").write_text(
        f"include_dir = '{file.parent}'\nshared_buffers = 64MB\nlisten_addresses = ''\n"
        f"unix_socket_directories = '{data}'\n"
    )
    turned({POOL: "48"})
    ready = (str(found[-1] / "pg_isready"), "-h", str(data))
    with serving((str(found[-1] / "postgres"), "-D", str(data)), ready, "nobody") as pid:
        verified(pid, "hugetlb-2m", "--memory", "shared")


def test_mariadb_reads_its_file(turned: Turn, folder: Path) -> None:
    server, install = (need_program(name, "mariadb-server") for name in ("mariadbd", "mariadb-install-db"))
    client = need_program("mariadb-admin", "mariadb-client")
    known = pwd.getpwnam("nobody")
    data = folder / "data"
    data.mkdir()
    os.chown(data, known.pw_uid, known.pw_gid)
    said(install, "--no-defaults", f"--datadir={data}", "--user=nobody", "--auth-root-authentication-method=normal")
    file = place(configuration.mariadb(large=True), folder)
    path = data / "socket"
    words = (
        server, f"--defaults-file={file}", f"--datadir={data}", "--skip-networking", f"--socket={path}",
        "--innodb-buffer-pool-size=64M", "--loose-innodb-log-file-size=8M",
    )  # fmt: skip
    turned({POOL: "64"})
    ready = (client, "--no-defaults", "-u", "root", f"--socket={path}", "ping")
    with serving(words, ready, "nobody") as pid:
        # What is mapped and not yet touched has no pages, and is reserved in the pool all the same.
        lines = [line.split() for line in Path(f"/proc/{pid}/smaps").read_text().splitlines()]
        sizes = [int(words[1]) for words in lines if words[0] == "Size:"]
        pages = [int(words[1]) for words in lines if words[0] == "KernelPageSize:"]
        huge = sum(size for size, page in zip(sizes, pages, strict=True) if page == 2 << 10)
        assert huge >= 64 << 10, "kB of the buffer pool; its threads' stacks and the rest of the heap are others"
