"""What several tests of fleets are made from."""

import pytest

from hugewise.fleet import pooled


@pytest.fixture
def read_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are read in this process: others would take longer to start than a few runs to be read."""
    monkeypatch.setattr(pooled, "_MANY", 1 << 30)
