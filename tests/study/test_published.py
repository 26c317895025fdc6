"""The keys of a study that name a published experiment: every mistake names file, key, value and cure."""

from pathlib import Path
from typing import Any

import pytest

from hugewise import published
from hugewise.errors import StudyError
from hugewise.study.load import parse, read
from tests.build.studies import study_data

LPC = "lpc-2024-mthp-arm64"


def study(entry: str | None = None, **top: Any) -> dict[str, Any]:
    workload = {"name": "chase"} | ({"published": entry} if entry else {})
    return study_data(workload=[workload], **top)


def test_a_study_names_its_source_its_arms_and_its_entries() -> None:
    arms = {"base": "4K (4KPS)", "thp": "2M (4KPS)"}
    read_ = read(study("memcached", published=LPC, published_arms=arms), "s.toml")
    assert (read_.published, read_.published_arms, read_.workload[0].published) == (LPC, arms, "memcached")
    plain = read(study(), "s.toml")
    assert (plain.published, plain.published_arms, plain.workload[0].published) == (None, {}, None)


@pytest.mark.parametrize(
    ("data", "said", "hint"),
    [
        (study(published="lpc-2024"), "s.toml: published = 'lpc-2024': is not a published source", f"mean {LPC}"),
        (study(published="lcp-2024-mthp-arm64"), "is not a published source", f"mean {LPC}"),
        (study(published=3), "published = 3: is not a published source", "sources: lkml-2009-paravirt, "),
        (study(published_arms={"thp": "2M"}), "published_arms: the study names no published source", "published = "),
        (study("memcached"), r"workload\[1\].published = 'memcached': the study names no", "or remove this key"),
        (
            study(published=LPC, published_arms={"thp": "2M (4KP)"}),
            r"published_arms.thp = '2M \(4KP\)': is not an arm of lpc",
            r"did you mean 2M (4KPS)",
        ),
        (
            study(published=LPC, published_arms={"tpp": "2M (4KPS)"}),
            "published_arms.tpp = 'tpp': is not one of the study's policies",
            "did you mean thp?",
        ),
        (study(published=LPC, published_arms=["thp"]), "published_arms", 'write { name = "value" }'),
        (
            study("memcache", published=LPC),
            r"workload\[1\].published = 'memcache': is not an entry of lpc",
            "did you mean memcached?",
        ),
    ],
)
def test_a_mistake_names_its_cure(data: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(StudyError, match=said) as error:
        read(data, "s.toml")
    assert hint in (error.value.hint or "")


def test_the_study_of_the_docs_can_be_read() -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/published.md").read_text(encoding="utf-8")
    example = page.split("```toml\n")[1].split("```")[0]
    found = parse(f'format = 1\nname = "docs"\n{example}', "docs.toml")
    assert found.published_arms["thp"] == "2M (4KPS)"
    for name in published.names():
        assert f"| `{name}` |" in page
        for entry in published.load(name).entries:
            assert f"`{entry}`" in page
