"""Layouts as a study writes them: read as strictly as the layout library reads them."""

import subprocess

import pytest

from hugewise.errors import StudyError
from hugewise.study.tables import check
from tests.build.studies import study_of
from tests.machine.layouts.programs import environment, library

GOOD = [
    "none",
    "base",
    "thp",
    "thp,heap=64m",
    "thp,children=no",
    "base,children=yes,heap=2m",
    "mosaic:0-25%=thp,heap=1g",
    "mosaic:0-12.5%=thp+12.5-100%=base,heap=64m",
    "mosaic:0-2m=thp+4m-6m=thp,heap=6m",
    "mosaic:0-25%=hugetlb-2m+50-75%=thp,heap=64m",
    "mosaic:1g-2g=hugetlb-1g,heap=2g",
]
BAD = [
    *("", "THP", "thp ", "thp,", "thp,heap=3m", "thp,heap=0", "thp,heap=99t", "thp,heap=2m,heap=2m", "thp,heap=1.5g"),
    *("thp,children=maybe", "thp,children=no,children=no", "thp,heap", "mosaic:", "mosaic:0-25%=thp", "thp,heap=01g"),
    "mosaic:0-25=thp,heap=1g",
    "mosaic:25-25%=thp,heap=1g",
    "mosaic:50-25%=thp,heap=1g",
    "mosaic:0-101%=thp,heap=1g",
    "mosaic:0-100.1%=thp,heap=1g",
    "mosaic:0-25%=huge,heap=1g",
    "mosaic:0-50%=thp+25-75%=thp,heap=1g",
    "mosaic:0-50%=thp+512m-1g=thp,heap=1g",
    "mosaic:0-3m=thp,heap=1g",
    "mosaic:0-2g=thp,heap=1g",
    "mosaic:0-512m=hugetlb-1g,heap=1g",
    "mosaic:0-1.2345%=thp,heap=1g",
    f"mosaic:{'+'.join(f'{each}-{each + 1}%=thp' for each in range(65))},heap=1g",
]


@pytest.mark.parametrize("words", GOOD)
def test_layouts(words: str) -> None:
    check(words)
    own = {"name": "mine", "from": "layout-thp", "layout": words}
    assert study_of(policies=["layout-base", own]).policies[1].layout == words


@pytest.mark.parametrize("words", BAD)
def test_what_is_none_is_the_study_s_mistake(words: str) -> None:
    with pytest.raises(StudyError, match=r"policies\[2\]\.layout = .*is no layout") as caught:
        study_of(policies=["layout-base", {"name": "mine", "from": "layout-thp", "layout": words}])
    assert caught.value.hint


def test_pages_of_a_pool_are_had_by_their_policy() -> None:
    with pytest.raises(ValueError, match="by the policies layout-hugetlb-SIZE"):
        check("hugetlb-2m,heap=64m")


def test_a_mosaic_has_pages_of_one_pool() -> None:
    with pytest.raises(ValueError, match="of one pool"):
        check("mosaic:0-1g=hugetlb-1g+1g-2g=hugetlb-2m,heap=2g")


def test_the_library_reads_them_alike() -> None:
    library()
    for words in (*GOOD, *BAD):
        done = subprocess.run(["true"], env=environment(words), capture_output=True, check=False)
        assert done.returncode == (0 if words in GOOD else 2), words
