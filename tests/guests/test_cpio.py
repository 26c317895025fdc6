"""Archives in the form that the kernel unpacks."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.errors import HugewiseError
from hugewise.guests import image
from tests.build.guests import entries_of

NAMES = st.text("abcdé-.", min_size=1, max_size=12).filter(lambda name: name.strip("."))


def test_a_member_is_written_as_the_kernels_documentation_says() -> None:
    data = image.cpio_archive([image.regular_file("init", b"hello", 0o755)])
    head = b"07070100000001000081ed0000000000000000000000010000000000000005"
    head += b"000000000000000000000000000000000000000500000000"
    assert data[:110] == head
    assert data[110:124] == b"init\0\0hello\0\0\0"  # name and content each end at a multiple of 4
    assert data[124:130] == b"070701"
    assert b"TRAILER!!!\0" in data
    assert len(data) % 512 == 0


def test_folders_above_come_first_and_once() -> None:
    entries = entries_of(
        image.cpio_archive(
            [image.regular_file("/a/b/one", b"1"), image.regular_file("a/b/two", b"2"), image.directory("a")]
        )
    )
    assert [entry.path for entry in entries] == ["a", "a/b", "a/b/one", "a/b/two"]
    assert [stat.S_ISDIR(entry.mode) for entry in entries] == [True, True, False, False]


def test_devices_are_kept() -> None:
    entry = image.device_node("console", 5, 1)
    assert entries_of(image.cpio_archive([entry])) == [entry]
    assert stat.S_ISCHR(entry.mode)


def test_a_file_cannot_be_there_twice() -> None:
    with pytest.raises(HugewiseError, match="has init twice"):
        image.cpio_archive([image.regular_file("init", b"1"), image.regular_file("/init", b"2")])


@given(st.dictionaries(NAMES, st.binary(max_size=40), max_size=5), st.dictionaries(NAMES, st.binary(), max_size=5))
def test_archives_that_follow_each_other_hold_what_each_holds(one: dict[str, bytes], two: dict[str, bytes]) -> None:
    first, second = ([image.regular_file(name, data) for name, data in each.items()] for each in (one, two))
    assert entries_of(image.cpio_archive(first) + image.cpio_archive(second)) == [*first, *second]
