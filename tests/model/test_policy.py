from __future__ import annotations

import pytest

from hugewise.deployment.program import Destination, for_program
from hugewise.machine import loader
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment, laid_pool

POOL, THP = PageTarget("hugetlb", 2 << 20), PageTarget("thp", 2 << 20)


@pytest.mark.parametrize(
    ("words", "target", "heap", "whole"),
    [
        ("thp", THP, 0, "thp"),
        ("thp", THP, 1, "thp,heap=2m"),
        ("thp,heap=8m", THP, 1 << 30, "thp,heap=8m"),
        ("hugetlb-2m", POOL, (3 << 20) + 1, "hugetlb-2m,heap=4m"),
        ("hugetlb-2m", POOL, 0, "hugetlb-2m,heap=2m"),
        ("hugetlb-1g", PageTarget("hugetlb", 1 << 30), 1 << 20, "hugetlb-1g,heap=1g"),
        ("mosaic:0-25%=hugetlb-2m", PageTarget("any", 4096), 103 << 20, "mosaic:0-25%=hugetlb-2m,heap=104m"),
        ("", POOL, 5, ""),
    ],
)
def test_the_heap_of_a_layout_is_of_whole_pages(words: str, target: PageTarget, heap: int, whole: str) -> None:
    assert Treatment(policy="p", mechanism="process", target=target, layout=words).laid_out(heap) == whole


def test_what_is_deployed_is_what_was_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "find", lambda: "/library.so")
    treatment = Treatment(policy="p", mechanism="process", target=POOL, layout="hugetlb-2m")
    ran = loader.environment(treatment, 5 << 20)[loader.LAYOUT]
    script = for_program(treatment, Destination(policy="p", words=("x",)), 5 << 20)[0].content
    assert ran == "hugetlb-2m,heap=6m"
    assert f"--pages {ran} --" in script


@pytest.mark.parametrize(
    ("words", "page", "total"),
    [
        ("thp", 0, 0),
        ("hugetlb-2m,heap=1g", 0, 0),
        ("mosaic:0-25%=thp,heap=1g", 0, 0),
        ("mosaic:0-25%=hugetlb-2m,heap=1g", 2 << 20, 256 << 20),
        ("mosaic:0-5%=hugetlb-2m,heap=104m", 2 << 20, 6 << 20),
        ("mosaic:0-12.5%=hugetlb-2m+50-100%=base+100-100%=thp,heap=64m", 2 << 20, 8 << 20),
        ("mosaic:0-64m=base+64m-96m=hugetlb-2m+96m-100m=hugetlb-2m,heap=1g", 2 << 20, 36 << 20),
        ("mosaic:1g-2g=hugetlb-1g,heap=2g,children=no", 1 << 30, 1 << 30),
    ],
)
def test_the_pool_of_a_mosaic_is_that_of_its_ranges(words: str, page: int, total: int) -> None:
    """Shares are rounded to whole pages, as by the library (5% of 52 pages are 2.6: 3)."""
    assert laid_pool(words) == (page, total)
