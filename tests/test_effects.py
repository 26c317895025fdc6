"""Where the source may touch files by path, or start programs: the rule of CONTRIBUTING, by walking the source.

A path is looked up anew at each call. Where another account can write in one of its folders, that account decides
where it leads: root works there through `hugewise.beneath`, or has it done as `nobody` (`hugewise.unprivileged`).
"""

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hugewise

SOURCE = Path(hugewise.__file__).parent
TOOLS = Path(__file__).parents[1] / "tools"

BY_PATH = {
    "it is what everybody else goes through": (
        "beneath",
        "files",
        "unprivileged",
        "reading",
    ),
    "files of the kernel, and folders below /run and /var/lib, where root alone can write": (
        "host/cgroup",
        "host/lock",
        "host/memory_state",
        "host/journal",
        "host/local_host",
        "host/network",
    ),
    "the run's folder, which is root's own under root (`files.own`)": (
        "attempt/service",
        "attempt/interleaved",
        "host/local_machine",
        "host/memory_state",
        "machine/probe",
        "machine/remote",
        "session/session",
        "store/folder",
        "store/log",
        "store/dataset",
    ),
    "the run's folder; and sockets, whose last name neither bind nor unlink follows, in a folder that lies in root's": (
        "guests/boot",
    ),
    "the spool and the folder of a fleet, which are root's own under root (`files.own`), and 0700 or made new": (
        "fleet/dask/worker",
        "fleet/folder",
        "fleet/keeper",
        "fleet/spool",
        "fleet/host_agent",
    ),
    "a folder of root's below the session's own": (
        "guests/hypervisor",
        "guests/nfs",
    ),
    "by a descriptor only": ("host/scratch", "report/export", "store/folder"),
    "it only reads, name by name below a descriptor, no link of another account to what is not its own": (
        "audit/root",
    ),
    "the cache, which is root's own under root": (
        "guests/cache",
        "guests/debian",
        "guests/image",
        "guests/kernels/build",
    ),
    "done as nobody": (
        "guests/image",
        "guests/kernels/build",
        "guests/kernels/__init__",
        "guests/kernels/build",
        "guests/debian",
        "workloads/_postgres",
    ),
    "a new folder of mode 0700 by mkdtemp(3), below the one where that is safe": (
        "clients/host",
        "inspection/verify",
        "predict/timing",
        "predict/trace",
    ),
    "a device of this host, opened and closed": (
        "cli/main",
        "guests/hypervisor",
    ),
    "a disk of the user's, opened to be read, and closed": ("guests/disks",),
    "an archive in memory": ("workloads/build",),
    "the checkout itself, by whom it belongs to: root has no need of it": (
        "tools/faults",
        "tools/reference",
        "tools/wheel",
    ),
    "the folder of results of the campaign, which `RunFolder` has found to be root's own under root": (
        "tools/torture/cases",
        "tools/torture/context",
        "tools/torture/findings",
        "tools/torture/subject",
        "tools/torture/traces",
    ),
    "a folder of its own, just made, which only its account may enter": ("tools/verification/studies",),
}
PROGRAMS = {
    "hugewise itself, pytest and the package's builder, from the checkout": (
        "tools/faults",
        "tools/torture/cases",
        "tools/torture/context",
        "tools/torture/subject",
        "tools/torture/torture",
        "tools/wheel",
    ),
    "the scheduler of a fleet: hugewise itself": (
        "fleet/dask/engine",
        "fleet/dask/worker",
    ),
    "the probe": (
        "host/local_machine",
        "host/memory_state",
        "machine/probe",
    ),
    "mount and ip, of this host's own, by root's own PATH": (
        "host/memory_state",
        "host/network",
    ),
    "the command of the caller, also under QEMU, with the rights of the caller and by its PATH": (
        "predict/timing",
        "predict/trace",
    ),
    "ssh, of root's own PATH": ("clients/host",),
    "as nobody": (
        "unprivileged",
        "guests/debian",
        "guests/kernels/build",
    ),
    "hugewise itself, that a host of a fleet has run; ssh and sudo, by root's own PATH, with words that are quoted": (
        "fleet/host_agent",
        "fleet/keeper",
        "fleet/engine",
    ),
}

FUNCTIONS: dict[str, set[str] | None] = {
    "os": {  # what takes a path
        *("open", "chown", "chmod", "lchown", "mkdir", "makedirs", "unlink", "remove", "rename", "renames", "replace"),
        *("symlink", "link", "rmdir", "removedirs", "truncate", "mkfifo", "mknod", "utime", "mount", "startfile"),
    },
    "shutil": None,  # all but `which`
    "tarfile": None,
    "zipfile": None,
    "tempfile": None,
}
STARTING = {"system", "popen", "fork", "forkpty", "execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp"}
STARTING |= {"posix_spawn", "posix_spawnp", "spawnv", "spawnve", "spawnl", "spawnlp", "spawnvp"}
METHODS = {
    "write_text",
    "write_bytes",
    "mkdir",
    "unlink",
    "rmdir",
    "symlink_to",
    "hardlink_to",
    "touch",
    "chmod",
    "lchmod",
    # DuckDB opens a name through links, and a draft beside it whose name everybody knows
    "write_parquet",
    "to_parquet",
    "write_csv",
    "to_csv",
}
COPY = re.compile(r"\bcopy\b.*\bto\b", re.IGNORECASE | re.DOTALL)
"""A statement of a database that writes a file, and what it is said by."""
SAYING = {"execute", "executemany", "sql", "query"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """The package and the tools. One at a time: all of them at once would be much to keep."""
    for below, root in ((SOURCE, SOURCE), (TOOLS, TOOLS.parent)):
        for path in sorted(below.rglob("*.py")):
            yield str(path.relative_to(root).with_suffix("")), ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, list[tuple[int, str]]]]:
    """The effects of each kind by module."""
    both = {name: (list(by_path(tree)), list(programs(tree))) for name, tree in modules()}
    return {
        "by path": {name: one for name, (one, _) in both.items()},
        "programs": {name: one for name, (_, one) in both.items()},
    }


@functools.lru_cache(1)
def walked(tree: ast.AST) -> list[ast.AST]:
    """All nodes of a tree: to find them takes longer than to look at each."""
    return list(ast.walk(tree))


def imported(tree: ast.AST) -> dict[str, str]:
    """What each name of the module is called where it comes from: `sp` is subprocess, `rmtree` is shutil.rmtree."""
    found: dict[str, str] = {}
    for node in walked(tree):
        if isinstance(node, ast.Import):
            found |= {name.asname or name.name.partition(".")[0]: name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


def called(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (above := called(node.value, names)) is not None:
        return f"{above}.{node.attr}"
    return None


def by_path(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Each effect on a path, with its line. Reading is none: `Path.open` and `open` without a mode that writes."""
    names = imported(tree)
    for node in walked(tree):
        if isinstance(node, ast.Name | ast.Attribute) and (found := called(node, names)) is not None:
            module, _, function = found.partition(".")
            known = FUNCTIONS.get(module, set())
            if function not in ("", "which") and (known is None or function in known):
                yield node.lineno, found
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAYING:
            texts = [one.value for each in node.args for one in ast.walk(each) if isinstance(one, ast.Constant)]
            if COPY.search(" ".join(map(str, texts))):
                yield node.lineno, "copy"
        if isinstance(node, ast.Call):
            words = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
            modes = {word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)}
            writes = any(set(mode) <= set("rwxab+t") and set(mode) & set("wxa+") for mode in modes)
            if isinstance(node.func, ast.Name) and node.func.id == "open" and writes:
                yield node.lineno, "open"
            if isinstance(node.func, ast.Attribute) and called(node.func, names) is None:
                name = node.func.attr
                one = len(node.args) == 1 and not node.keywords  # of a text: two
                if name in METHODS or (name in ("rename", "replace") and one) or (name == "open" and writes):
                    yield node.lineno, f".{name}"


def programs(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Each use of subprocess, and of what in `os` starts programs."""
    names = imported(tree)
    for node in walked(tree):
        if isinstance(node, ast.Name | ast.Attribute) and (found := called(node, names)) is not None:
            module, _, function = found.partition(".")
            if module in ("subprocess", "pty") or (module == "os" and function in STARTING):
                yield node.lineno, found


def test_a_pattern_of_a_message_ends_where_the_text_does() -> None:
    """`$` is also before a line feed that ends the text; msgspec searches, so a pattern needs its ends."""
    found = [
        f"{name}.py:{keyword.lineno}"
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "Meta"
        for keyword in node.keywords
        if keyword.arg == "pattern" and isinstance(keyword.value, ast.Constant)
        if str(keyword.value.value).endswith("$")
    ]
    assert found == [], "write \\Z"


@pytest.mark.parametrize(("kind", "listed"), [("by path", BY_PATH), ("programs", PROGRAMS)])
def test_what_touches_a_path_or_starts_a_program_is_on_the_list(
    found: dict[str, dict[str, list[tuple[int, str]]]], kind: str, listed: dict[str, tuple[str, ...]]
) -> None:
    allowed = {module for group in listed.values() for module in group}
    effects = found[kind]
    strays = {f"{name}.py:{line}": what for name, all_ in effects.items() if name not in allowed for line, what in all_}
    assert strays == {}, "go through hugewise.beneath, or hugewise.unprivileged; see CONTRIBUTING"
    idle = {name for name in allowed if not effects.get(name)}
    assert idle == set(), "these have no such effect any more: take them off the list"


@pytest.mark.parametrize(
    ("seen", "planted"),
    [
        (by_path, "import os\nos.chown(path, 1, 1)"),
        (by_path, "import os as o\no.open(path, 0)"),
        (by_path, "from os import rename as move\nmove(a, b)"),
        (by_path, "import shutil\nshutil.rmtree(path)"),
        (by_path, "from shutil import copy2\ncopy2(a, b)"),
        (by_path, "import tarfile\ntarfile.open(path)"),
        (by_path, "import tempfile\ntempfile.mkdtemp()"),
        (by_path, "path.write_text('x')"),
        (by_path, "Path(path).mkdir(parents=True)"),
        (by_path, "path.rename(other)"),
        (by_path, "path.replace(other)"),
        (by_path, "path.open('wb')"),
        (by_path, "open(path, mode='a')"),
        (by_path, "path.unlink(missing_ok=True)"),
        (by_path, "relation.write_parquet(path)"),
        (by_path, "connection.execute(f\"copy ({rows}) to '{path}' (format parquet)\")"),
        (programs, "import subprocess\nsubprocess.run(['x'])"),
        (programs, "from subprocess import Popen as P\nP(['x'])"),
        (programs, "import os\nos.system('x')"),
    ],
)
def test_an_effect_that_is_planted_is_seen(seen: Callable[[ast.AST], Iterator[tuple[int, str]]], planted: str) -> None:
    assert list(seen(ast.parse(planted)))


@pytest.mark.parametrize(
    "harmless", ["'a'.replace('b', 'c')", "path.open('rb')", "open(path)", "import shutil\nshutil.which('x')"]
)
def test_what_only_reads_is_none(harmless: str) -> None:
    assert list(by_path(ast.parse(harmless))) == list(programs(ast.parse(harmless))) == []
