"""Rows of numbers, as all methods take and give them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Integers", "Numbers"]

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]
