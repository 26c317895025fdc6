"""A host whose files are broken, or hostile, is audited all the same; nothing of it is printed that is no text."""

import shutil
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hugewise.audit.audit import AuditReport, audit
from hugewise.audit.root import Root
from hugewise.audit.systemd import directives, words
from tests.build.trees import Tree, healthy
from tests.fuzz.inputs import HOSTILE, fuzzed, in_time

_THP = "/sys/kernel/mm/transparent_hugepage"


def inhabited(path: Path) -> Tree:
    """A host with something in every place that is read."""
    tree = healthy(path)
    tree.boot("transparent_hugepage=always hugepagesz=1G hugepages=1 default_hugepagesz=2M hugepages=4")
    tree.knob("khugepaged/max_ptes_none", "409")
    tree.pool(2048, 4, free=3, reserved=1)
    tree.put("/sys/fs/cgroup/system.slice/db.service/hugetlb.2MB.max", "4194304\n")
    tree.put("/sys/fs/cgroup/system.slice/db.service/memory.max", "4194304\n")
    tree.put("/sys/fs/cgroup/system.slice/db.service/memory.stat", "anon_thp 4194304\n")
    tree.put("/etc/sysctl.d/a.conf", "vm.nr_hugepages=4\n")
    tree.put("/etc/tmpfiles.d/a.conf", f"w {_THP}/hugepages-*kB/enabled - - - - never\n")
    tree.put("/etc/tuned/active_profile", "mine\n")
    tree.put("/etc/tuned/mine/tuned.conf", "[main]\ninclude=mine\n[vm]\ntransparent_hugepages=never\n")
    tree.put("/etc/systemd/system/app.service.d/a.conf", "[Service]\nEnvironmentFile=/etc/default/app\n")
    tree.put("/etc/default/app", "MALLOC_CONF=thp:always\n")
    tree.put("/etc/mysql/my.cnf", "[mysqld]\nlarge_pages=ON\ninnodb_buffer_pool_size=1G\n!include /etc/mysql/my.cnf\n")
    tree.put("/etc/memcached.conf", "-L\n")
    tree.put("/etc/mongod.conf", "cacheSizeGB: 1\n")
    tree.put("/var/lib/dpkg/status", "Package: mongodb-org-server\nVersion: 8.0.1\n\n")
    tree.put("/installed-rpms", "mongodb-org-server-8.0.1-1.el9.x86_64\n")
    tree.put("/etc/default/grub", 'GRUB_CMDLINE_LINUX="transparent_hugepages=never hugepagesz=1GB hugepages=0:1"\n')
    tree.put("/boot/loader/entries/a.conf", "version 6\nlinux /vmlinuz-6\noptions transparent_hugepage=never\n")
    tree.put("/boot/grub/grub.cfg", "\tlinux /vmlinuz-6 hugepages=8\n")
    tree.put("/opt/run.sh", f"#!/bin/sh\nfor k in a b; do echo never > {_THP}/$k; done\nexec java $JAVA_OPTS M\n")
    tree.service("run", 'Environment="JAVA_OPTS=-Xmx4g @/opt/options"', "ExecStart=/opt/run.sh $JAVA_OPTS")
    tree.put("/opt/options", "-XX:+UseLargePages\n")
    tree.put("/data/postgresql.conf", "huge_pages=on\nhuge_page_size=2MB\nshared_buffers=1GB\ninclude_dir=.\n")
    tree.process(200, "postgres", argv=["postgres", "-D", "/data"], maps=("/dev/zero (deleted)=1048576",))
    tree.service("kv", "ExecStart=/usr/bin/redis-server /etc/redis.conf")
    tree.put("/etc/redis.conf", "disable-thp no\ninclude /etc/redis.conf\n")
    tree.process(201, "redis-server", argv=["redis-server *:1"], unit="kv.service")
    tree.process(202, "java", exe="/opt/jdk/bin/java", argv=["java", "-XX:+UseLargePages"])
    tree.put("/opt/jdk/release", 'JAVA_VERSION="17.0.1"\n')
    return tree


def test_each_file_of_a_host_may_be_anything(tmp_path: Path) -> None:
    tree = inhabited(tmp_path / "host")
    files = sorted(
        path for path in tree.path.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size < 9999
    )

    @fuzzed(50)
    @given(
        st.sampled_from(files),
        st.sampled_from(HOSTILE) | st.binary(max_size=200),
        st.sampled_from(["all", "end", "middle"]),
    )
    def every(path: Path, content: bytes, how: str) -> None:
        before = path.read_bytes()
        half = len(before) // 2
        path.write_bytes(
            content if how == "all" else before + content if how == "end" else before[:half] + content + before[half:]
        )
        try:
            with in_time():
                told = msgspec.json.encode(audit(Root(tree.path)))
            assert msgspec.json.decode(told, type=AuditReport).format == 2
        finally:
            path.write_bytes(before)

    every()


def test_each_file_may_be_gone_or_a_folder(tmp_path: Path) -> None:
    tree = inhabited(tmp_path / "host")
    for path in sorted(path for path in tree.path.rglob("*") if path.is_file()):
        kept = path.with_name("kept-aside")
        path.rename(kept)
        assert audit(Root(tree.path)).format == 2
        path.mkdir()
        assert audit(Root(tree.path)).format == 2
        shutil.rmtree(path)
        kept.rename(path)


def test_long_words_and_lines_take_no_longer_than_they_are() -> None:
    with in_time():
        assert len(words("x" * (1 << 20))[0]) == 1 << 20
        assert len(words('"' + "\\\\" * (1 << 19))[0]) == 1 << 19
        assert len(list(directives("[Service]\nA=" + "x\\\n" * (1 << 18)))) <= 1
        assert len(list(directives("A=1\n" * (1 << 18)))) == 1 << 18


@fuzzed(50)
@given(st.text(max_size=200))
def test_words_are_parts_of_the_text(text: str) -> None:
    for word in words(text):
        word.encode()
