"""Services from their files: how they are started, with quotes, resets, drop-ins, masks and templates."""

import struct
from pathlib import Path

import pytest

from hugewise.audit import systemd
from hugewise.audit.collect import collect
from hugewise.audit.facts import UnitConfig
from hugewise.audit.root import Root
from hugewise.audit.systemd import (
    directives,
    load_service,
    service_aliases,
    service_files,
    specified,
    unit_start,
    words,
)
from hugewise.deployment.program import UnitStart
from tests.build.trees import Tree
from tests.requirements import need


def unit(tree: Tree, name: str) -> UnitConfig:
    root = Root(tree.path)
    return load_service(root, name, service_files(root).get(name)).config


def variables(config: UnitConfig) -> dict[str, str]:
    return {one.key: one.value for one in config.environment}


def test_a_line_goes_on_over_comments() -> None:
    text = (
        "[Service]\nExecStart=/bin/a \\\n# no part of it\n; nor this\n   b \\\n c\n\nType=x\n=none\nnot an assignment\n"
    )
    assert [(directive.section, directive.key, directive.value, directive.line) for directive in directives(text)] == [
        ("Service", "ExecStart", "/bin/a  b  c", 2),
        ("Service", "Type", "x", 8),
        ("Service", "", "none", 9),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ('"A=1 2" \'B=x "y"\' C=3', ["A=1 2", 'B=x "y"', "C=3"]),
        (r"a\x41\101\ts\s b\\", ["aAA\ts ", "b\\"]),
        ('"open', ["open"]),
        ('""', [""]),
        ("", []),
        ("end\\", ["end\\"]),
    ],
)
def test_words_are_as_systemd_splits_them(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_specifiers_of_the_name() -> None:
    assert specified("%n %N %p %i %% %H", "pg@15-main.service") == "pg@15-main.service pg@15-main pg 15-main % %H"


def test_the_environment_is_the_last_word_and_empty_resets(tree: Tree) -> None:
    tree.put(
        "/etc/default/app", "# c\nexport MALLOC_CONF='thp:always'\nSECRET=hunter2\nGODEBUG=disablethp=1,gctrace=1\n"
    )
    tree.service(
        "app",
        "Environment=MALLOC_CONF=lost",
        "Environment=",
        'Environment="LD_PRELOAD=/opt/a.so /opt/b.so" PASSWORD=hunter2',
        'Environment="GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.rtld.x=2"',
        "EnvironmentFile=-/etc/default/app",
        "EnvironmentFile=-/etc/default/none",
        "ExecStart=/bin/lost",
        "ExecStart=",
        "ExecStart=-@/usr/bin/env called MIMALLOC_ALLOW_THP=2 numactl -m 0 -- /usr/bin/app --password hunter2",
    )
    found = unit(tree, "app.service")
    assert variables(found) == {
        "LD_PRELOAD": "/opt/a.so:/opt/b.so",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "MALLOC_CONF": "thp:always",
        "GODEBUG": "disablethp=1",
        "MIMALLOC_ALLOW_THP": "2",
    }
    assert [(command.program, command.wrappers) for command in found.commands] == [("/usr/bin/app", ("env", "numactl"))]
    assert "hunter2" not in repr(found)


def test_the_first_folder_decides_and_drop_ins_are_sorted_over_all(tree: Tree) -> None:
    tree.put("/usr/lib/systemd/system/app.service", "[Service]\nMemoryTHP=system\nExecStart=/usr/bin/other\n")
    tree.put("/usr/lib/systemd/system/app.service.d/50-a.conf", "[Service]\nMemoryTHP=disable\n")
    tree.put("/etc/systemd/system/app.service.d/20-b.conf", "[Service]\nMemoryTHP=madvise\n")
    found = unit(tree, "app.service")
    assert found.path == "/etc/systemd/system/app.service"
    assert found.memory_thp is not None and found.memory_thp.value == "disable"
    assert found.memory_thp.where == "/usr/lib/systemd/system/app.service.d/50-a.conf:2"
    # One of the same name in a folder before it takes its place; a link to /dev/null takes it away.
    tree.put("/etc/systemd/system/app.service.d/50-a.conf", "[Service]\nMemoryTHP=inherit\n")
    assert (unit(tree, "app.service").memory_thp or found.memory_thp).value == "inherit"
    tree.link("/etc/systemd/system/app.service.d/50-a.conf", "/dev/null")
    assert (unit(tree, "app.service").memory_thp or found.memory_thp).value == "madvise"
    tree.put("/etc/systemd/system/app.service.d/99-reset.conf", "[Service]\nMemoryTHP=\n")
    assert unit(tree, "app.service").memory_thp is None


def test_drop_ins_for_templates_prefixes_and_all_services(tree: Tree) -> None:
    tree.put("/usr/lib/systemd/system/pg-a@.service", "[Service]\nExecStart=/usr/bin/app %i\n")
    for folder, name in (("service", "1"), ("pg-@.service", "2"), ("pg-a@.service", "3"), ("pg-a@x.service", "4")):
        tree.put(f"/etc/systemd/system/{folder}.d/{name}.conf", f"[Service]\nEnvironment=MALLOC_CONF=n:{name}\n")
    root = Root(tree.path)
    found = load_service(root, "pg-a@x.service", "/usr/lib/systemd/system/pg-a@.service").config
    assert [file.rpartition("/")[2] for file in found.files[1:]] == ["1.conf", "2.conf", "3.conf", "4.conf"]
    assert variables(found) == {"MALLOC_CONF": "n:4"}


def test_a_masked_service_has_no_settings(tree: Tree) -> None:
    tree.put("/usr/lib/systemd/system/redis.service", "[Service]\nMemoryTHP=never\n")
    tree.link("/etc/systemd/system/redis.service", "/dev/null")
    assert unit(tree, "redis.service").masked and unit(tree, "redis.service").memory_thp is None
    tree.put("/usr/lib/systemd/system/empty.service", "")
    assert unit(tree, "empty.service").masked


def test_an_alias_is_the_service_that_it_leads_to_and_drop_ins_for_it_count(tree: Tree) -> None:
    tree.put("/usr/lib/systemd/system/redis-server.service", "[Service]\nExecStart=/usr/bin/app\n")
    tree.link("/etc/systemd/system/redis.service", "/usr/lib/systemd/system/redis-server.service")
    root = Root(tree.path)
    assert service_aliases(root, service_files(root)) == {"redis.service": "redis-server.service"}
    tree.put("/etc/systemd/system/redis.service.d/thp.conf", "[Service]\nMemoryTHP=disable\n")
    (found,) = [each for each in collect(Root(tree.path)).units if each.name == "redis-server.service"]
    assert found.memory_thp is not None
    assert found.memory_thp.where == "/etc/systemd/system/redis.service.d/thp.conf:2"


def test_what_every_service_is_given(tree: Tree) -> None:
    tree.put("/etc/systemd/system.conf", "[Manager]\nDefaultEnvironment=MALLOC_CONF=lost\nDefaultEnvironment=\n")
    tree.put("/usr/lib/systemd/system.conf.d/a.conf", "[Manager]\nDefaultEnvironment=GODEBUG=disablethp=1 X=secret\n")
    assert [(default.key, default.value, default.where) for default in collect(Root(tree.path)).defaults] == [
        ("GODEBUG", "disablethp=1", "/usr/lib/systemd/system.conf.d/a.conf:2")
    ]


def test_programs_are_looked_at_and_scripts_are_not_known(tree: Tree) -> None:
    tree.program("/usr/bin/up", mode=0o4755)
    tree.program("/usr/bin/go", static=True)
    tree.put("/usr/bin/script", "#!/bin/sh\n", 0o755)
    whole = tree.at("/usr/bin/up").read_bytes()
    name_at_end, table_at_end = bytearray(whole), bytearray(whole[:64])  # where patchelf puts them
    struct.pack_into("<Q", name_at_end, 64 + 56 + 8, 8192)
    struct.pack_into("<Q", table_at_end, 32, 8192)
    tree.put("/usr/bin/name", bytes(name_at_end), 0o755)
    tree.put("/usr/bin/table", bytes(table_at_end.ljust(8192, b"\0")) + whole[64:], 0o755)
    names = ("up", "go", "name", "table", "script", "gone")
    for name in names:
        tree.service(name, f"ExecStart=+/usr/bin/{name}")
    assert {
        name: (command.setuid, command.static) for name in names for command in unit(tree, f"{name}.service").commands
    } == {
        "up": (True, False),
        "go": (False, True),
        "name": (False, False),
        "table": (False, None),
        "script": (False, None),
        "gone": (None, None),
    }


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


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ("/bin/a $TWO -x", ["/bin/a", "one", "t w o", "-x"]),
        ("/bin/a ${TWO} x${ONE}y", ["/bin/a", "one 't w o'", "x1y"]),
        ("/bin/a $NONE ${NONE} $$ONE a$ONE", ["/bin/a", "", "$ONE", "a$ONE"]),
        ("$ONE $ONE", ["$ONE", "1"]),
    ],
)
def test_variables_of_a_command_line(argv: str, found: list[str]) -> None:
    assert systemd.expanded(words(argv), {"ONE": "1", "TWO": "one 't w o'"}) == found


THP = "/sys/kernel/mm/transparent_hugepage"


@pytest.mark.parametrize(
    ("command", "writes"),
    [
        (f"/bin/sh -c 'echo never > {THP}/enabled'", {f"{THP}/enabled": "never"}),
        (f'/usr/bin/env bash -ec "printf always >{THP}/enabled"', {f"{THP}/enabled": "always"}),
        (
            f"/bin/sh -c 'for k in enabled defrag; do test -f {THP}/$k && echo never | tee {THP}/$k >/dev/null; done'",
            {f"{THP}/enabled": "never", f"{THP}/defrag": "never"},
        ),
        ("-/sbin/sysctl -q -w vm.nr_hugepages=512", {"vm.nr_hugepages": "512"}),
        ("/bin/sh -c 'echo 8 >/proc/sys/vm/nr_hugepages'", {"vm.nr_hugepages": "8"}),
        (f"/bin/sh -c 'echo ${{MODE}} > {THP}/enabled'", {f"{THP}/enabled": "madvise"}),
        (f"/bin/sh -c 'V=always; echo \"$V\" > {THP}/enabled'", {f"{THP}/enabled": "always"}),
        (f"/bin/sh -c 'cat /etc/mode > {THP}/enabled'", {f"{THP}/enabled": ""}),
        (f"/bin/sh -c 'test -f {THP}/enabled && cat {THP}/enabled'", {}),
        ("/usr/bin/hugeadm --thp-never", {f"{THP}/enabled": "never"}),
        ("/opt/turn.sh x", {f"{THP}/defrag": "defer", f"{THP}/enabled": "x"}),
    ],
)
def test_what_a_service_writes_to_a_knob(command: str, writes: dict[str, str], tree: Tree) -> None:
    tree.put(
        "/opt/turn.sh", f"#!/bin/sh -e\n# a comment > {THP}/x\necho defer > {THP}/defrag\necho $1 >{THP}/enabled\n"
    )
    tree.service("turn", "Environment=MODE=madvise", f"ExecStart={command}")
    assert {one.key: one.value for one in unit(tree, "turn.service").writes} == writes


def test_a_service_that_no_link_starts_writes_nothing_at_boot(tree: Tree) -> None:
    for name, mode in (("old", "never"), ("new", "always")):
        tree.service(name, f"ExecStart=/bin/sh -c 'echo {mode} > {THP}/enabled'", "[Install]", "WantedBy=basic.target")
    tree.link("/etc/systemd/system/basic.target.wants/new.service", "/etc/systemd/system/new.service")
    loaded = {one.name: one for one in collect(Root(tree.path)).units}
    assert (loaded["old.service"].disabled, loaded["new.service"].disabled) == (True, False)
    assert loaded["app.service"].disabled is False, "it has no [Install]: others start it"
