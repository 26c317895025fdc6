"""What packages will take, before they are fetched; with real lists it is asked in `test_debian`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.guests import debian, packages
from tests.guests.test_debian import STANZAS


@pytest.mark.parametrize(
    ("said", "size"),
    [
        ("After this operation, 284 kB of additional disk space will be used.", 284_000),
        ("After this operation, 1,233 MB of additional disk space will be used.", 1_233_000_000),
        ("After this operation, 53.1 MB of additional disk space will be used.", 53_100_000),
        ("After this operation, 12 B of additional disk space will be used.", 12),
        ("After this operation, 12 kB disk space will be freed.", None),
        ("Need to get 1,233 kB of archives.", None),
    ],
)
def test_what_packages_take_unpacked_is_read(said: str, size: int | None) -> None:
    assert packages.unpacked_bytes(f"Building dependency tree...\n{said}\n") == size


def test_without_lists_nothing_is_asked_of_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HUGEWISE_APT_SOURCES", str(tmp_path / "none.list"))
    assert packages.package_sizes(["hello"], "trixie", "arm64") is None  # no archive either
    (tmp_path / "debian.sources").write_text(STANZAS)
    monkeypatch.setenv("HUGEWISE_APT_SOURCES", str(tmp_path / "debian.sources"))
    monkeypatch.setattr(debian, "workshop", lambda: pytest.fail("apt was asked"))
    assert packages.package_sizes(["hello"], "trixie", "arm64") is None
