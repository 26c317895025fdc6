"""What the tests of reports have, for the pages of results: a figure that several pages have is drawn once."""

from tests.report.conftest import drawn_once

__all__ = ["drawn_once"]
