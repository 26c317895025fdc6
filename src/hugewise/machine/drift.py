"""What somebody else turned while hugewise had it turned."""

from __future__ import annotations

import msgspec

__all__ = ["SURPLUS", "Drift"]

SURPLUS = "surplus_hugepages"
"""The file of a hugetlb pool that counts pages beyond its size (admin-guide/mm/hugetlbpage.rst)."""


class Drift(msgspec.Struct, frozen=True):
    """A knob that does not hold what hugewise last wrote or saw; `found` is None when it cannot be read any more.

    For pages of a pool that could not be given back, as some program still uses them: its count of surplus pages.
    """

    path: str
    expected: str
    found: str | None

    def __str__(self) -> str:
        return f"{self.path} is {self.found or 'gone'}, not {self.expected}"

    def left_alone(self) -> str:
        """Why it is not as it was before the run, for the user."""
        if self.path.endswith(f"/{SURPLUS}"):
            return f"not restored, as a program still uses pages of the pool (they go with it): {self}"
        return f"not restored, somebody else turned it: {self}"
