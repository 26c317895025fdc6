"""A host in a dictionary, and the settings and pools of a run there."""

import pytest

from hugewise.host.knob import Settings
from hugewise.host.pool import Pools
from tests.build.hosts import FakeHost, Notes


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def settings(host: FakeHost, notes: Notes) -> Settings:
    return Settings(host, notes)


@pytest.fixture
def pools(settings: Settings) -> Pools:
    return Pools(settings)
