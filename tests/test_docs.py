"""The documents hold: links lead somewhere, studies, policies and figures of statistics are those that there are."""

import re
import shlex
from pathlib import Path
from typing import get_args

import click
import pytest

from hugewise.cli.main import cli
from hugewise.inspection.reasons import ReasonId
from hugewise.model.pages import PageSizes
from hugewise.policies import discover
from hugewise.stats import paired, power, sessions
from hugewise.stats.campaign import FEWEST
from hugewise.study.keys import keys_of
from hugewise.study.load import load
from hugewise.study.tables import Validity

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES = [README, ROOT / "docs/tutorial.md", ROOT / "docs/fleet.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$|^((?:    .*\n)+)", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^ *(?:\$ )?(?:sudo )?(?:\.venv/bin/)?hugewise ((?:.*\\\n)*.*)$", re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page, and those that the page names itself."""
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        target = page.parent / link if link else page
        assert target.exists(), f"{page}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page}: {link}#{anchor}"


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_commands_have_the_options_that_pages_show(page: Path) -> None:
    """Of every `hugewise` in a block of code: its verb, and each option before `--`."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    blocks = [fenced or indented for language, fenced, indented in found if not language]
    shown = [shlex.split(each, comments=True) for block in blocks for each in COMMAND.findall(block)]
    for words in shown:
        command: click.Command = cli
        rest = words
        while isinstance(command, click.Group) and not rest[0].startswith("-"):
            assert rest[0] in command.commands, words
            command, rest = command.commands[rest[0]], rest[1:]
        known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        own = rest[: rest.index("--")] if "--" in rest else rest
        named = {word.partition("=")[0] for word in own if word.startswith("-")} - {"--help", "--version"}
        assert named <= known, words
    assert shown or page.name == "reports.md"


def test_the_readme_is_short_and_begins_with_ones_own_program() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.split()) <= 1000
    assert "hugewise advise --output deploy -- ./my-program" in " ".join(text.split()[:250])


def test_the_tutorials_study_is_a_study(tmp_path: Path) -> None:
    written = re.search(r"```toml\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(encoding="utf-8"), re.DOTALL)
    assert written is not None
    path = tmp_path / "my-program.toml"
    path.write_text(written[1], encoding="utf-8")
    assert load(path).budget.blocks == 20


def test_which_study_has_which_method() -> None:
    """As the page lists them."""
    studies = [load(path) for path in sorted((ROOT / "studies").glob("*.toml"))]
    page = (ROOT / "docs/concepts/verdicts.md").read_text(encoding="utf-8")
    listed = re.search(r"^\*\*Method of each study\.\*\*\n\n(.*?)\n\n", page, re.DOTALL | re.MULTILINE)
    assert listed is not None
    rows = [[each.strip() for each in line.strip("|").split("|")] for line in listed[1].splitlines()[2:]]
    told = {method.strip("`"): set(re.findall(r"`([^`]+)`", studies_)) for method, studies_, _ in rows}
    names = {study.name for study in studies}
    for method in ("sequential", "exact", "fixed-n"):
        assert told[method] & names == {study.name for study in studies if study.method == method}, method
    blocks = dict(re.findall(r"`([^`]+)` \((\d+)", next(each for method, each, _ in rows if method == "`fixed-n`")))
    assert blocks == {study.name: str(study.budget.blocks) for study in studies if study.method == "fixed-n"}
    assert set().union(*told.values()) - names <= {"advise", "hugewise guest study"}
    of_guests = [study for study in studies if study.guest is not None]
    assert {study.method for study in of_guests} == {"fixed-n"}
    assert len(of_guests) == 4
    guests = (ROOT / "docs/concepts/guests.md").read_text(encoding="utf-8")
    assert 'All four have `method = "fixed-n"`' in guests


def test_the_concepts_name_every_policy_and_no_other() -> None:
    page = (ROOT / "docs/concepts/policies.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([a-z-]+(?:SIZE)?(?:-shmem)?)` \|", page, re.MULTILINE))
    sizes = PageSizes(base=4096, pmd=2 << 20, mthp=(64 << 10,), hugetlb=(2 << 20,), shmem=(64 << 10,))
    offered = {
        re.sub(r"^(mthp|hugetlb|reserved|surplus|layout-hugetlb)-[^-]*", r"\1-SIZE", name) for name in discover(sizes)
    }
    assert named == offered


def test_every_validity_rule_is_explained() -> None:
    page = (ROOT / "docs/concepts/noise.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(keys_of(Validity))


def test_every_reason_why_pages_are_missing_is_explained() -> None:
    page = (ROOT / "docs/reference/missing-pages.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == set(get_args(ReasonId))


CONCEPTS = Path(__file__).parents[1] / "docs/concepts"


def test_the_floor_of_pairs_on_the_page() -> None:
    page = (CONCEPTS / "sequential.md").read_text(encoding="utf-8")
    one, strict = power.least_pairs(0.01, 2000), power.least_pairs(1e-4, 2000)
    assert f"{one} pairs for one comparison at 99% with 2,000 declared, {strict} at" in page
    assert f"{sessions.needed(0.05)} sessions at 95%, {sessions.needed(1e-4)} at 99.99%" in page
    assert f"from {FEWEST} pairs" in page


def test_a_tenth_of_the_error_costs_a_third_more_pairs() -> None:
    for shift in (0.2, 0.4):
        one = power.pairs_for_assurance(shift, power.KNOWN, 0.01, budget=2000)
        shared = power.pairs_for_assurance(shift, power.KNOWN, 0.001, budget=2000)
        assert one is not None and shared is not None
        assert 1.25 < shared / one < 1.5


def test_what_a_pilots_error_costs() -> None:
    page = " ".join((CONCEPTS / "planning.md").read_text(encoding="utf-8").split())
    known = power.pairs_for_assurance(0.4, power.KNOWN, 0.01, budget=2000)
    assert known is not None
    for pairs, more in ((20, 1.25), (40, 1.125), (6, 2.5)):
        asked = power.pairs_for_assurance(0.4, paired.freedom(pairs), 0.01, budget=2000)
        assert asked is not None and asked / known == pytest.approx(more, rel=0.06)
    assert "From 20 pairs, about a quarter more pairs" in page
    assert "from 40, an eighth; from 6, two and a half times as many" in page
    assert f"a deviation with {paired.freedom(2):g} (n - 1) degrees of freedom" in page
