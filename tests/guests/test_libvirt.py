"""The memory of a libvirt domain, read and written, and how an arm in guests is deployed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hugewise.cli import guest_study
from hugewise.cli.main import cli
from hugewise.deployment import configuration as host_files
from hugewise.errors import StudyError, UserError
from hugewise.guests import libvirt
from hugewise.machine import domain
from hugewise.machine.domain import parse
from hugewise.model.guest import Backing
from hugewise.model.policy import DeployedFile, Deployment, FileKind
from hugewise.plan.guest_deployment import deployed, element
from hugewise.study.keys import Place
from hugewise.study.tables import BACKING
from tests.build.studies import FakeHost

MIB2, GIB1 = 2 << 20, 1 << 30
MEMINFO = (
    "MemTotal:       24000000 kB\nHugePages_Total:       0\nHugepagesize:       {} kB\nHugetlb:               0 kB"
)

# As virsh dumpxml writes one, shortened.
DOMAIN = """<domain type='kvm' id='3' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>shp</name>
  <memory unit='KiB'>12582912</memory>
  <currentMemory unit='KiB'>12582912</currentMemory>
  {backing}
  <vcpu placement='static'>14</vcpu>
  {more}
  <os>
    <type arch='x86_64' machine='pc-q35-4.2'>hvm</type>
  </os>
  <cpu mode='host-passthrough'/>
  <devices>
    <memballoon model='virtio'/>
  </devices>
</domain>
"""


def read(backing: str, more: str = "", page: int | None = MIB2) -> libvirt.DomainMemory:
    text = DOMAIN.format(backing=backing, more=more)
    return libvirt.requested_backing(parse(text.encode(), "shp.xml"), "shp.xml", page)


def backing_of(text: str, **changes: object) -> Backing:
    asked = read(text, **changes)  # type: ignore[arg-type]
    assert asked.warnings == ()
    return asked.backing


HUGE = Backing(pages="hugetlb-1g", source="file", preallocate=True)


def test_the_published_change_means_the_default_of_the_host() -> None:
    """The article of the THP and 1 GiB guests has these lines, on a host whose default it set to 1 GiB."""
    article = "<memoryBacking>\n  <hugepages/>\n</memoryBacking>"
    assert backing_of(article, page=GIB1) == HUGE
    assert read(article, page=MIB2).backing == Backing(pages="hugetlb-2m", source="file", preallocate=True)
    assert read(article).bare == 6
    with pytest.raises(UserError, match=r"^shp\.xml:6: this host has no huge pages"):
        read(article, page=None)
    with pytest.raises(UserError, match="pages of 32m back no guest"):
        read(article, page=32 << 20)


def test_shared_memory_without_a_memfd_is_a_file_of_libvirts() -> None:
    for access in ("<access mode='shared'/>", "<source type='file'/><access mode='shared'/>"):
        asked = read(f"<memoryBacking>{access}</memoryBacking>")
        assert asked.backing == Backing(pages="thp", preallocate=False, share=True)
        assert ["below memory_backing_dir of qemu.conf" in each for each in asked.warnings] == [True]
    assert read("<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>").warnings == ()
    assert read("<memoryBacking><hugepages/><access mode='shared'/></memoryBacking>").warnings == ()
    assert read("<memoryBacking><access mode='private'/></memoryBacking>").warnings == ()


def test_a_memnode_of_one_of_several_nodes_is_told() -> None:
    cells = "".join(f"<cell id='{number}' cpus='{number}' memory='1' unit='GiB'/>" for number in range(3))
    tuning = (
        "<numatune><memory mode='strict' nodeset='0,2'/><memnode cellid='0' mode='strict' nodeset='1'/>"
        "<memnode cellid='2' mode='preferred' nodeset='0'/></numatune>"
    )
    more = f"{tuning}<cpu><numa>{cells}</numa></cpu>"
    text = DOMAIN.format(backing="", more=more).replace("<cpu mode='host-passthrough'/>", "")
    asked = libvirt.requested_backing(parse(text.encode(), "shp.xml"), "shp.xml", MIB2)
    assert asked.backing.nodes == (0, 2)
    strict, preferred = asked.warnings
    assert "node 0 of the guest is bound to node 1 of the host by itself" in strict and "`bind`" in strict
    assert "node 2 of the guest has mode='preferred' for node 0 of the host, which binds nothing" in preferred
    found = domain.read(parse(text.encode(), "shp.xml"), "shp.xml")
    assert [cell.bind for cell in found.cells] == [(1,), (0, 2), None]


def test_a_domain_that_says_nothing_is_huge_transparently_as_it_is_touched() -> None:
    assert backing_of("") == Backing(pages="thp", preallocate=False)
    assert backing_of("<memoryBacking/>") == Backing(pages="thp", preallocate=False)


@pytest.mark.parametrize(
    ("attributes", "pages"),
    [
        ("size='1' unit='GiB'", "hugetlb-1g"),
        ("size='1' unit='G'", "hugetlb-1g"),
        ("size='1' unit='g'", "hugetlb-1g"),
        ("size='1048576' unit='KiB'", "hugetlb-1g"),
        ("size='1048576' unit='k'", "hugetlb-1g"),
        ("size='1048576'", "hugetlb-1g"),
        ("size='2' unit='M'", "hugetlb-2m"),
        ("size='2' unit='mib'", "hugetlb-2m"),
        ("size='2048'", "hugetlb-2m"),
        ("size='2097152' unit='b'", "hugetlb-2m"),
        ("size='2097152' unit='bytes'", "hugetlb-2m"),
        ("size='2' unit='M' nodeset='0'", "hugetlb-2m"),
    ],
)
def test_units_are_those_of_libvirt(attributes: str, pages: str) -> None:
    backing = backing_of(f"<memoryBacking><hugepages><page {attributes}/></hugepages></memoryBacking>")
    assert (backing.pages, backing.source, backing.preallocate) == (pages, "file", True)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("size='2' unit='MB'", r"2 MB \(2000000 bytes\) is no size of pages"),  # a power of ten
        ("size='3' unit='MiB'", "is no size of pages"),
        ("size='0'", "is no size of pages"),
        ("unit='G'", "'' is not a number"),
        ("size='-1' unit='G'", "'-1' is not a number"),
        ("size='1g'", "'1g' is not a number"),
        ("size='1' unit='GiBi'", "unit='GiBi' is not one of libvirt's"),
        ("size='1' unit='pages'", "is not one of libvirt's"),
        ("size='16' unit='M'", "pages of 16m back no guest"),
        ("size='2' unit='M' nodeset='0-x'", "is not a set of nodes"),
        ("size='2' unit='M' nodeset='3-1'", "is not a set of nodes"),
        ("size='2' unit='M' nodeset='9999'", "is not a set of nodes"),
        ("size='2' unit='M' nodeset=''", "is not a set of nodes"),
    ],
)
def test_a_wrong_page_names_file_line_and_cure(attributes: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"^shp\.xml:6: .*{message}") as caught:
        read(f"<memoryBacking><hugepages>\n<page {attributes}/></hugepages></memoryBacking>")
    assert caught.value.hint


def test_of_several_sizes_that_of_the_first_node_counts() -> None:
    """The example of libvirt's documentation: 1 GiB for all nodes of the guest but node 4."""
    asked = read("""<memoryBacking>
      <hugepages>
        <page size="1" unit="G" nodeset="0-3,5"/>
        <page size="2" unit="M" nodeset="4"/>
      </hugepages>
      <nosharepages/>
      <locked/>
      <source type="file"/>
      <access mode="private"/>
      <allocation mode="immediate" threads='8'/>
      <discard/>
    </memoryBacking>""")
    assert asked.backing == HUGE
    assert asked.warnings == (
        "shp.xml:8: 2m pages for node 4 of the guest have no effect: it has node 0 alone",
        "shp.xml:10: <nosharepages> has no key in a study: whether pages are merged is the host's to say (KSM), but "
        "for pages of a pool, which never are",
        "shp.xml:11: <locked> has no key in a study: the guest's memory can be swapped out, but for pages of a pool",
    )
    both = "<page size='2' unit='M'/><page size='1' unit='G' nodeset='{}'/>"
    first, other = (f"<memoryBacking><hugepages>{both.format(n)}</hugepages></memoryBacking>" for n in ("0", "1-3,^2"))
    assert read(first).backing.pages == "hugetlb-1g"
    assert read(other).backing.pages == "hugetlb-2m"
    assert "1g pages for nodes 1,3 of the guest" in read(other).warnings[0]
    none = read("<memoryBacking><hugepages><page size='1' unit='G' nodeset='1'/></hugepages></memoryBacking>")
    assert (none.backing.pages, len(none.warnings)) == ("thp", 2)
    with pytest.raises(UserError, match="node 0 of the guest has two sizes"):
        read("<memoryBacking><hugepages><page size='2048'/><page size='1' unit='G'/></hugepages></memoryBacking>")


def test_memfd_and_preallocation() -> None:
    huge = "<memoryBacking><hugepages><page size='1' unit='G'/></hugepages>{}</memoryBacking>"
    memfd = backing_of(huge.format("<source type='memfd'/>"))
    assert memfd == Backing(pages="hugetlb-1g", source="memfd", preallocate=True)
    assert backing_of("<memoryBacking><allocation mode='immediate'/></memoryBacking>") == Backing(pages="thp")
    ondemand = read(huge.format("<allocation mode='ondemand'/>"))
    assert not ondemand.backing.preallocate
    assert "libvirt refuses huge pages on demand" in ondemand.warnings[0]
    assert "libvirt refuses" in read(huge.format("<source type='anonymous'/>")).warnings[0]


@pytest.mark.parametrize(
    ("inside", "warning"),
    [
        ("<locked/>", "swapped"),
        ("<nosharepages/>", "KSM"),
        ("<source type='memfd'/>", "without <hugepages> has no effect"),
        ("<source type='file'/>", "without <hugepages> has no effect"),
        ("<pinned/>", "<pinned> in <memoryBacking> is not known"),
        ("<source kind='memfd'/>", "kind='memfd' of <source> is not known"),
        ("<hugepages><pages size='1'/></hugepages>", "<pages> in <hugepages> is not known"),
        ("<hugepages><page size='2048' node='0'/></hugepages>", "node='0' of <page> is not known"),
        ("<hugepages><page size='4' unit='KiB'/></hugepages>", "is none of a pool"),
        ("<discard/><discard/>", "<discard> stands twice"),
    ],
)
def test_what_guests_do_not_have_is_named_with_its_line(inside: str, warning: str) -> None:
    asked = read(f"<memoryBacking>\n{inside}\n</memoryBacking>")
    assert len(asked.warnings) == 1
    assert asked.warnings[0].startswith("shp.xml:6: ")
    assert warning in asked.warnings[0]


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("<source type='shm'/>", "type='shm' of <source> is not one of libvirt's"),
        ("<access mode='all'/>", "mode='all' of <access>"),
        ("<allocation mode='never'/>", "mode='never' of <allocation>"),
    ],
)
def test_choices_are_those_of_libvirt(inside: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(f"<memoryBacking>{inside}</memoryBacking>")


def test_nodes_of_the_host_are_those_of_numatune() -> None:
    huge = "<memoryBacking><hugepages><page size='1' unit='G'/></hugepages></memoryBacking>"
    strict = "<numatune><memory mode='strict' nodeset='1-4,^3'/>{}</numatune>"
    assert backing_of(huge, more=strict.format("")).nodes == (1, 2, 4)
    assert backing_of(huge, more=strict.format("<memnode cellid='0' mode='strict' nodeset='2'/>")).nodes == (2,)
    other = read(huge, more=strict.format("<memnode cellid='2' mode='preferred' nodeset='2'/>"))
    assert other.backing.nodes == (1, 2, 4)
    assert "cellid='2' has no effect" in other.warnings[0]
    for memory, warning in (("mode='preferred' nodeset='0'", "binds nothing"), ("placement='auto'", "name nodes")):
        asked = read(huge, more=f"<numatune><memory {memory}/></numatune>")
        assert asked.backing.nodes is None
        assert warning in asked.warnings[0]


def test_what_else_is_about_memory_is_named() -> None:
    limit = "<memtune><hard_limit unit='G'>20</hard_limit></memtune>"
    more = f"{limit}<qemu:commandline><qemu:arg value='-m'/></qemu:commandline>"
    assert [w.partition(": ")[2] for w in read("", more=more).warnings] == [
        "<qemu:commandline> is not read",
    ]


def test_shared_memory_and_the_nodes_of_the_guest_are_restated() -> None:
    """What virtiofs needs, and pages of two sizes for a guest of two nodes, with hugetlbfs of libvirt's own kind."""
    assert backing_of("<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>") == Backing(
        pages="thp", preallocate=False, share=True
    )
    cells = "<cpu><numa><cell id='0' memory='1' {}/><cell id='1' memory='1'/></numa></cpu>"
    pages = "<page size='1' unit='G' nodeset='0'/><page size='2' unit='M' nodeset='1'/>"
    mixed = f"<memoryBacking><hugepages>{pages}</hugepages></memoryBacking>"
    assert backing_of(mixed, more=cells.format("")) == Backing(
        pages="hugetlb-1g", source="file", by_node=("hugetlb-1g", "hugetlb-2m")
    )
    half = "<memoryBacking><hugepages><page size='2' unit='M' nodeset='0'/></hugepages></memoryBacking>"
    asked = read(half, more=cells.format(""))
    assert asked.backing.by_node == ("hugetlb-2m", "thp")
    assert asked.warnings == ("shp.xml:5: no page is for node 1 of the guest, which then has ordinary memory",)
    asked = read("", more=cells.format("memAccess='shared'"))
    assert asked.backing.share
    assert "memAccess of one node alone has no key" in asked.warnings[0]
    disk = read("<memoryBacking>\n<source type='file'/><access mode='shared'/></memoryBacking>")
    assert "shp.xml:6: type='file' is a file below memory_backing_dir" in disk.warnings[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"^d\.xml:1: is not well-formed XML: no element found"),
        ("<domain>\n<memory>\n</domain>", r"^d\.xml:3: is not well-formed XML: mismatched tag"),
        ("<domain>\n&x;</domain>", r"^d\.xml:2: is not well-formed XML: undefined entity"),
        ("<network/>", r"^d\.xml:1: <network> is not a domain of libvirt"),
        (
            "<!DOCTYPE d [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><domain>&x;</domain>",
            r"^d\.xml:1: has a document type",
        ),
        (
            "<!DOCTYPE d [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;&a;'>]>\n<domain>&b;</domain>",
            r"^d\.xml:1: has a document type",
        ),
        ("<a>" * 500 + "</a>" * 500, r"^d\.xml:1: is nested too deeply"),
    ],
)
def test_what_is_not_a_domain_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        libvirt.requested_backing(parse(text.encode(), "d.xml"), "d.xml", MIB2)
    assert caught.value.hint


writable = st.one_of(
    st.builds(
        Backing,
        pages=st.just("thp"),
        preallocate=st.booleans(),
        nodes=st.none() | st.just((0, 2)),
        share=st.booleans(),
    ),
    st.builds(
        Backing,
        share=st.booleans(),
        pages=st.sampled_from(["hugetlb-2m", "hugetlb-1g"]),
        source=st.sampled_from(["memfd", "file"]),
        nodes=st.none() | st.lists(st.integers(0, 1023), min_size=1, unique=True).map(lambda n: tuple(sorted(n))),
    ),
)


@given(writable)
def test_what_is_written_is_read_again(backing: Backing) -> None:
    text = f"<domain>\n{element(backing)}</domain>"
    asked = libvirt.requested_backing(parse(text.encode(), "d.xml"), "d.xml", None)
    assert asked == libvirt.DomainMemory(backing, None, ())


backings = st.builds(
    lambda pages, source, preallocate, nodes, share, more: Backing(
        pages=pages,
        source=source if pages.startswith("huge") else "memfd",
        preallocate=preallocate,
        nodes=nodes,
        share=share,
        by_node=(pages, "hugetlb-2m") if more else (),
    ),
    st.sampled_from(["base", "thp", "hugetlb-2m", "hugetlb-1g"]),
    st.sampled_from(["memfd", "file"]),
    st.booleans(),
    st.none() | st.just((0,)) | st.just((1, 3)),
    st.booleans(),
    st.booleans(),
)


@given(backings)
def test_the_toml_is_that_of_a_study(backing: Backing) -> None:
    assert BACKING.read(tomllib.loads(libvirt.toml(backing))["backing"], Place("s.toml")) == backing


def test_what_libvirt_cannot_say_is_refused() -> None:
    with pytest.raises(UserError, match="denies a guest transparent huge pages"):
        element(Backing(pages="base"))
    with pytest.raises(UserError, match="always allocates hugetlb-1g"):
        element(Backing(pages="hugetlb-1g", preallocate=False))


STUDY = """
format = 1
name = "s"
policies = ["base", { name = "shp", from = "base", backing = "hugetlb-1g" }]
[guest]
[[kernel]]
name = "k"
path = "/boot/vmlinuz"
[[workload]]
name = "chase"
"""


def test_a_bare_element_is_held_against_what_is_wanted(tmp_path: Path) -> None:
    """On a host whose default is 2 MiB the article's lines do not give what the article is about."""
    domain, study = tmp_path / "shp.xml", tmp_path / "s.toml"
    domain.write_text(DOMAIN.format(backing="<memoryBacking><hugepages/></memoryBacking>", more=""))
    study.write_text(STUDY)
    small = FakeHost({"/proc/meminfo": MEMINFO.format(2048)})
    large = FakeHost({"/proc/meminfo": MEMINFO.format(1048576)})
    assert guest_study.read(domain, small) == ('backing = { pages = "hugetlb-2m", source = "file" }\n', ())
    for found, warnings in (
        guest_study.read(domain, small, "hugetlb-1g"),
        guest_study.read(domain, small, study=study),
    ):
        assert found == 'backing = { pages = "hugetlb-2m", source = "file" }\n'
        assert len(warnings) == 1
        assert f"{domain}:5: <hugepages/> without a size is this host's default, hugetlb-2m" in warnings[0]
        assert "default_hugepagesz=1G" in warnings[0]
    assert guest_study.read(domain, large, "hugetlb-1g", study)[1] == ()
    domain.write_text("<memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages></memoryBacking>")
    assert (
        "asks for hugetlb-2m, and wanted is hugetlb-1g (--expect)"
        in guest_study.read(domain, large, "hugetlb-1g")[1][0]
    )


def test_a_bare_element_is_named_where_one_of_several_arms_says_1g(tmp_path: Path) -> None:
    """A study of both sizes has an arm for whatever the default is: the published lines are the 1 GiB one."""
    domain, study = tmp_path / "shp.xml", tmp_path / "s.toml"
    arms = ", ".join(f'{{ name = "{name}", from = "base", backing = "hugetlb-{name}" }}' for name in ("2m", "1g"))
    study.write_text(STUDY.replace('{ name = "shp", from = "base", backing = "hugetlb-1g" }', arms))
    small = FakeHost({"/proc/meminfo": MEMINFO.format(2048)})
    large = FakeHost({"/proc/meminfo": MEMINFO.format(1048576)})
    domain.write_text(DOMAIN.format(backing="<memoryBacking><hugepages/></memoryBacking>", more=""))
    (warning,) = guest_study.read(domain, small, study=study)[1]
    assert f"default, hugetlb-2m, and wanted is hugetlb-1g (arm 1g of {study}): name the size" in warning
    assert guest_study.read(domain, large, study=study)[1] == ()
    domain.write_text("<memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages></memoryBacking>")
    assert guest_study.read(domain, small, study=study)[1] == ()  # it says which arm it is


def test_the_command(tmp_path: Path) -> None:
    domain = tmp_path / "d.xml"
    domain.write_text("<memoryBacking><hugepages><page size='1' unit='G'/></hugepages><locking/></memoryBacking>")
    ran = CliRunner().invoke(cli, ["guest", "xml", str(domain)])
    assert (ran.exit_code, ran.stdout) == (0, 'backing = { pages = "hugetlb-1g", source = "file" }\n')
    assert "warning: " in ran.stderr
    assert "<locking> in <memoryBacking> is not known" in ran.stderr
    table = "{ pages = 'hugetlb-2m', source = 'file', nodes = [0] }"
    ran = CliRunner().invoke(cli, ["guest", "xml", "--backing", table])
    assert ran.exit_code == 0
    assert libvirt.requested_backing(
        parse(f"<domain>{ran.stdout}</domain>".encode(), "d.xml"), "d.xml", None
    ).backing == Backing(pages="hugetlb-2m", source="file", nodes=(0,))
    for arguments, error in (
        ([], UserError),
        ([str(domain), "--backing", "thp"], UserError),
        (["--backing", "thp", "--expect", "thp"], UserError),
        (["--backing", "{ pages = "], UserError),
        (["--backing", "hugetlb-4m"], StudyError),
        ([str(tmp_path / "none.xml")], UserError),
    ):
        assert isinstance(CliRunner().invoke(cli, ["guest", "xml", *arguments]).exception, error)


GIB = 1 << 30
INSIDE = Deployment(files=(host_files.now({"/k": "always"}),), note="all sizes on")


def of(backing: Backing) -> Deployment:
    return deployed(INSIDE, "the kernel 16k", 16384, backing, 12 * GIB)


def on_host(found: Deployment, kind: FileKind) -> DeployedFile:
    (one,) = (file for file in found.files if file.kind == kind and file.on == "machine")
    return one


def test_static_pages_are_reserved_on_the_host_and_asked_for_by_the_domain() -> None:
    found = of(Backing(pages="hugetlb-1g"))
    assert found.commands() == (
        "# in the guest:",
        "echo always > /k",
        "# on its host, before it starts:",
        "echo 12 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
    )
    assert "hugepagesz=1G hugepages=12" in on_host(found, "boot").content
    assert on_host(found, "libvirt").content == (
        '<memoryBacking>\n  <hugepages>\n    <page size="1048576" unit="KiB"/>\n  </hugepages>\n'
        '  <source type="memfd"/>\n</memoryBacking>\n'
    )
    assert on_host(found, "libvirt").label == "not read by a tool here"
    assert found.note == (
        "in a guest whose memory is 1g pages of a pool of its host, under the kernel 16k with base pages of 16k: "
        "all sizes on"
    )


def test_pages_of_several_nodes_are_reserved_on_each() -> None:
    found = deployed(INSIDE, "k", 4096, Backing(pages="hugetlb-2m", nodes=(0, 2)), 6 << 20)
    assert [line for line in found.commands() if "nr_hugepages" in line] == [
        "echo 2 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
        "echo 1 > /sys/devices/system/node/node2/hugepages/hugepages-2048kB/nr_hugepages",
    ]
    assert "hugepagesz=2M hugepages=0:2,2:1" in on_host(found, "boot").content
    assert 'nodeset="0,2"' in on_host(found, "libvirt").content


def test_transparent_pages_are_for_qemu_to_advise_or_denied() -> None:
    thp, base = of(Backing()), of(Backing(pages="base"))
    assert thp.commands()[-1] == "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    assert '<allocation mode="immediate"/>' in on_host(thp, "libvirt").content
    assert base.commands()[-1] == "echo never > /sys/kernel/mm/transparent_hugepage/enabled"
    assert "transparent_hugepage=never" in on_host(base, "boot").content
    assert not any(file.kind == "libvirt" for file in base.files)
