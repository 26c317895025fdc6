"""Property tests draw the same examples in every run; HUGEWISE_EXPLORE=1 draws new ones, to look for more."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, database=None)
settings.register_profile("explore", derandomize=False)
settings.load_profile("explore" if os.environ.get("HUGEWISE_EXPLORE") == "1" else "same")
