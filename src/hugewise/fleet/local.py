"""The engine of one host: this one. Orders are obeyed in this process, as a program of their own would."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from hugewise.fleet import spool
from hugewise.fleet.orders import HostAnswer, HostOrder, decode_answer, encode
from hugewise.fleet.place import HostPlace

__all__ = ["LocalEngine"]


class LocalEngine:
    """Answers for the host that is called `name` in the inventory."""

    def __init__(self, name: str, place: HostPlace) -> None:
        self._name, self._place = name, place

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def present(self) -> frozenset[str]:
        return frozenset({self._name})

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        return decode_answer(spool.answered(encode(order), self._place))
