"""The memory of a libvirt domain, read and written, and how an arm in guests is deployed."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.deployment import configuration as host_files
from hugewise.errors import UserError
from hugewise.guests.domain_study import backing_toml, domain_backing
from hugewise.machine import domain
from hugewise.machine.domain import parse
from hugewise.model.guest import Backing
from hugewise.model.policy import DeployedFile, Deployment, FileKind
from hugewise.plan.guest_deployment import deployed, element
from hugewise.study.keys import Place
from hugewise.study.tables import BACKING

MIB2, GIB1 = 2 << 20, 1 << 30
CELLS = "<cpu><numa><cell id='0' memory='1'/><cell id='1' memory='1'/></numa></cpu>"


def read(inside: str, page: int | None = MIB2) -> Backing:
    text = f"<domain>\n<memory unit='GiB'>2</memory>{inside}</domain>"
    return domain_backing(domain.read(parse(text.encode(), "d.xml"), "d.xml"), page)


def backed(inside: str, more: str = "", page: int | None = MIB2) -> Backing:
    return read(f"<memoryBacking>{inside}</memoryBacking>{more}", page)


def huge(*pages: str) -> str:
    return f"<hugepages>{''.join(f'<page {page}/>' for page in pages)}</hugepages>"


POOL = Backing(pages="hugetlb-1g", source="file")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (read(""), Backing(preallocate=False)),
        (backed("<allocation mode='immediate'/>"), Backing()),
        # The article of the THP and 1 GiB guests has a bare element, on a host whose default it set to 1 GiB.
        (backed("<hugepages/>", page=GIB1), POOL),
        (backed("<hugepages/>"), Backing(pages="hugetlb-2m", source="file")),
        (backed(huge("size='1' unit='G'") + "<source type='memfd'/>"), Backing(pages="hugetlb-1g")),
        (
            backed(huge("size='1' unit='G'") + "<allocation mode='ondemand'/>"),
            Backing(pages="hugetlb-1g", source="file", preallocate=False),
        ),
        (backed(huge("size='4' unit='KiB'")), Backing(preallocate=False)),
        (backed(huge("size='2' unit='M'", "size='1' unit='G' nodeset='0'")), POOL),
        (
            backed(huge("size='2' unit='M'", "size='1' unit='G' nodeset='1-3,^2'")),
            Backing(pages="hugetlb-2m", source="file"),
        ),
        (backed("<access mode='shared'/>"), Backing(preallocate=False, share=True)),
        (
            backed(huge("size='1' unit='G' nodeset='0'", "size='2' unit='M' nodeset='1'"), CELLS),
            Backing(pages="hugetlb-1g", source="file", by_node=("hugetlb-1g", "hugetlb-2m")),
        ),
        (
            backed(huge("size='2' unit='M' nodeset='0'"), CELLS),
            Backing(pages="hugetlb-2m", source="file", by_node=("hugetlb-2m", "thp")),
        ),
        (
            read("<numatune><memory mode='strict' nodeset='1-4,^3'/></numatune>"),
            Backing(preallocate=False, nodes=(1, 2, 4)),
        ),
        (read("<numatune><memory mode='preferred' nodeset='0'/></numatune>"), Backing(preallocate=False)),
        (
            read("<numatune><memory nodeset='0'/><memnode cellid='0' mode='strict' nodeset='2'/></numatune>"),
            Backing(preallocate=False, nodes=(2,)),
        ),
    ],
)
def test_the_memory_that_a_domain_asks_for(found: Backing, wanted: Backing) -> None:
    assert found == wanted


@pytest.mark.parametrize(
    ("attributes", "pages"),
    [
        ("size='1' unit='g'", "hugetlb-1g"),
        ("size='1048576' unit='KiB'", "hugetlb-1g"),
        ("size='1048576'", "hugetlb-1g"),
        ("size='2' unit='mib'", "hugetlb-2m"),
        ("size='2097152' unit='bytes'", "hugetlb-2m"),
    ],
)
def test_units_are_those_of_libvirt(attributes: str, pages: str) -> None:
    assert backed(huge(attributes)).pages == pages


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("size='2' unit='MB'", "pages of 2000000 back no guest"),  # a power of ten
        ("size='16' unit='M'", "pages of 16m back no guest"),
        ("unit='G'", "'' is not a number"),
        ("size='-1' unit='G'", "'-1' is not a number"),
        ("size='1' unit='GiBi'", "unit='GiBi' is not one of libvirt's"),
        ("size='2' unit='M' nodeset='3-1'", "is not a set of nodes"),
        ("size='2' unit='M' nodeset='9999'", "is not a set of nodes"),
    ],
)
def test_a_wrong_page_names_file_line_and_cure(attributes: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"^d\.xml:2: .*{message}") as caught:
        backed(huge(attributes))
    assert caught.value.hint
    with pytest.raises(UserError, match=r"^d\.xml:2: pages of no size"):
        backed("<hugepages/>", page=None)


def test_each_node_may_be_bound_by_itself_and_what_binds_nothing_is_named() -> None:
    cells = "".join(f"<cell id='{number}' cpus='{number}' memory='1' unit='GiB'/>" for number in range(3))
    text = (
        "<domain><numatune><memory mode='strict' nodeset='0,2'/><memnode cellid='0' mode='strict' nodeset='1'/>"
        f"<memnode cellid='2' mode='preferred' nodeset='0'/></numatune><cpu><numa>{cells}</numa></cpu></domain>"
    )
    found = domain.read(parse(text.encode(), "d.xml"), "d.xml")
    assert (found.bind, [cell.bind for cell in found.cells]) == ((0, 2), [(1,), (0, 2), None])
    assert [other.what for other in found.others] == ["<memnode> of <numatune>, which binds nothing,"]


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
        domain.read(parse(text.encode(), "d.xml"), "d.xml")
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
    assert read(element(backing)) == backing


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
    assert BACKING.read(tomllib.loads(backing_toml(backing))["backing"], Place("s.toml")) == backing


def test_what_libvirt_cannot_say_is_refused() -> None:
    with pytest.raises(UserError, match="denies a guest transparent huge pages"):
        element(Backing(pages="base"))
    with pytest.raises(UserError, match="always allocates hugetlb-1g"):
        element(Backing(pages="hugetlb-1g", preallocate=False))


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
