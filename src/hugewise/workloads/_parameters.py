"""A workload's parameters as values of their types: the study's reader has made them so already."""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.model.workload import ParameterValue

__all__ = ["Values", "integer", "number"]

Values = Mapping[str, ParameterValue]


def integer(values: Values, name: str) -> int:
    """A parameter of type integer or size (bytes)."""
    value = values[name]
    assert isinstance(value, int)
    return value


def number(values: Values, name: str) -> float:
    """A parameter of type number, duration (seconds), share or integer."""
    value = values[name]
    assert isinstance(value, int | float)
    return float(value)
