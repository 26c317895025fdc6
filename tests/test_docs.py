"""The documents hold: links lead somewhere, the example study is one, and the policies named exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from hugewise.inspection.reasons import ReasonId
from hugewise.model.pages import PageSizes
from hugewise.policies import discover
from hugewise.study.load import load
from hugewise.study.tables import Validity

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_docs_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+\.md)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).is_file(), f"{page}: {link}"


def test_the_tutorials_study_is_a_study(tmp_path: Path) -> None:
    written = re.search(r"```toml\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(encoding="utf-8"), re.DOTALL)
    assert written is not None
    path = tmp_path / "my-program.toml"
    path.write_text(written[1], encoding="utf-8")
    assert load(path).budget.blocks == 20


def test_which_study_has_which_method() -> None:
    """As the page lists them, and as the README sums them up."""
    studies = [load(path) for path in sorted((ROOT / "studies").glob("*.toml"))]
    page = (ROOT / "docs/concepts/verdicts.md").read_text(encoding="utf-8")
    listed = re.search(r"^\*\*Which study has what\.\*\*\n\n(.*?)\n\n", page, re.DOTALL | re.MULTILINE)
    assert listed is not None
    rows = [[each.strip() for each in line.strip("|").split("|")] for line in listed[1].splitlines()[2:]]
    told = {method.strip("`"): set(re.findall(r"`([^`]+)`", studies_)) for method, studies_, _ in rows}
    names = {study.name for study in studies}
    for method in ("sequential", "exact", "fixed-n"):
        assert told[method] & names == {study.name for study in studies if study.method == method}, method
    blocks = dict(re.findall(r"`([^`]+)` \((\d+)", next(each for method, each, _ in rows if method == "`fixed-n`")))
    assert blocks == {study.name: str(study.budget.blocks) for study in studies if study.method == "fixed-n"}
    assert set().union(*told.values()) - names <= {"advise", "hugewise guest study", "hugewise guest study --resident"}
    readme = re.sub(r"\s+", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
    of_guests = [study for study in studies if study.guest is not None]
    assert {study.method for study in of_guests} == {"fixed-n"}
    assert len(of_guests) == 4
    assert "the four studies here, whose counts vary a little, have Student's t once" in readme
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
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(Validity.__struct_fields__)


def test_every_reason_why_pages_are_missing_is_explained() -> None:
    page = (ROOT / "docs/guides/deploy.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == set(get_args(ReasonId))
