"""The pages that tests look at in a browser: of runs that were really made, each written once for all of them; and the
browser, which is one for all of them. A figure that several reports have is drawn once.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from bench.report import run
from hugewise import open_results
from hugewise.model.results import Results
from hugewise.report import fleet, images
from hugewise.report.document import Document, figures
from hugewise.report.write import report, write
from tests.browser import Browser, browser
from tests.build import restated
from tests.build.booted import recorded
from tests.build.few_blocks import two_blocks
from tests.golden import GOLDEN
from tests.report.test_fleet import of_many_hosts
from tools.results.data import read

RESULTS = GOLDEN.parents[1] / "docs" / "results"
LARGE, CELLS = 2_400, 2
"""Attempts of the large run, of 50 metrics each, and its cells: so many that figures draw some of them alone. It was
not measured, and is told like any (`bench.report`, which holds one of 24,000 to its limits).
"""


class Page(NamedTuple):
    """A page by its path, the keys of the figures that its document has, and their files."""

    path: Path
    figures: frozenset[str]
    files: tuple[Path, ...]


def kept(name: str) -> Callable[[Path], Results]:
    """A run whose folder is kept below tests/golden/runs."""
    return lambda _: open_results(GOLDEN / "runs" / name)


def published(name: str) -> Callable[[Path], Results]:
    """The newest run of a page of docs/results."""
    return lambda _: read(RESULTS / f"{name}.parquet").runs[0].results


REAL: Mapping[str, Callable[[Path], Results]] = {
    **{name: kept(name) for name in ("ended", "guests", "deployed", "demo")},
    # servers under load, with figures of their latency over time and of memory against gain
    "mthp-pressure": published("mthp-pressure"),
    "percona-2018-hugepages": published("percona-2018-hugepages"),
    # the age of memory as a factor
    "aged-chase": published("aged-chase"),
    "recorded guests": lambda _: recorded(),
    "large": lambda folder: open_results(run(LARGE, folder, CELLS)),
}
"""The run by the name of its page, made in a folder: small ones of each kind, the demo, servers, a study with factors,
guests, and a large one.
"""
MADE: Mapping[str, Callable[[], Results]] = {
    "18 cells of 2 blocks": two_blocks,
    "what others published": restated.lpc,
    "counters side by side": restated.lkml,
}
"""Runs that no machine measured, whose effects lie far apart, or of which more is better."""
FLEET = "a fleet"
NAMES = (*REAL, *MADE, FLEET)
KINDS = {"demo", "deployed", "mthp-pressure", "aged-chase", "recorded guests", "what others published", FLEET}
"""One of each kind, of those that are quickly laid out."""

SMALL = {"aged-chase", "recorded guests"}
"""A page with long tables of attempts, and the smallest one: for what takes a browser seconds for each page."""

MANY = "24,000 attempts"
"""The page of the largest, of which a picture is kept. It takes a minute to make: no test but that of the picture does,
and only when it takes it anew.
"""


class Pages:
    """Pages of real runs, which are written when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Page] = {}

    def of(self, name: str) -> Page:
        if name not in self._made:
            paths, document = self._write(name)
            keys = frozenset(each.key for each in figures(document))
            files = tuple(path for key, path in paths.items() if key.endswith(".svg"))
            self._made[name] = Page(paths["html"], keys, files)
        return self._made[name]

    def _write(self, name: str) -> tuple[dict[str, Path], Document]:
        if name == FLEET:
            made = of_many_hosts()
            return fleet.write(made, self._folder / name), fleet.report(made)
        if name == MANY:
            results = open_results(run(24_000, self._folder))
        else:
            results = MADE[name]() if name in MADE else REAL[name](self._folder / "runs")
        # How long the path of a folder is, which the page tells, is this machine's matter.
        results = replace(results, folder=f"results/{results.study}/{results.run}")
        return write(results, self._folder / name), report(results)


def pytest_itemcollected(item: pytest.Item) -> None:
    """What looks at pages is one process's, so that it has one browser, and writes each page once."""
    if "shown" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser. What a test has turned there, `Browser.open` turns back."""
    with browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


SVGS: dict[bytes, str] = {}


@pytest.fixture(scope="package", autouse=True)
def drawn_once() -> Iterator[None]:
    """Figures of equal specifications are drawn once, here: most tests write reports of the same few runs, and drawing
    is nearly all that it takes.
    """
    render = images.render

    def rendered(spec: Mapping[str, Any]) -> str:
        key = hashlib.sha256(json.dumps(spec, default=float).encode()).digest()
        if key not in SVGS:
            SVGS[key] = render(spec)
        return SVGS[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "render", rendered)
        yield


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[] if name in KINDS else pytest.mark.soak) for name in NAMES]
)
def real(request: pytest.FixtureRequest, pages: Pages) -> Page:
    """Each of them in turn."""
    return pages.of(request.param)


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[] if name in SMALL else pytest.mark.soak) for name in REAL]
)
def small(request: pytest.FixtureRequest, pages: Pages) -> Page:
    """Each of them in turn, most in `make soak`."""
    return pages.of(request.param)
