"""What carries orders to hosts and answers back, and nothing else.

An engine keeps no state that a fleet needs: what it carried may arrive twice, late or not at all, and hosts and
coordinator are made for that (`spool`, `coordinator`). It never tries again by itself.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from hugewise.errors import FencedError, HugewiseError
from hugewise.fleet.orders import HostAnswer, HostOrder, Refusal

__all__ = ["Engine", "asked"]


class Engine(Protocol):
    """Several threads may call; of each host one at a time."""

    def __enter__(self) -> Self:
        """Connect. Raises UserError where that cannot be, such as for a missing extra, before any host is touched."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go; whatever runs on hosts goes on."""
        ...

    def present(self) -> frozenset[str]:
        """Names of the hosts that may be there now, without asking them: those that are not are not called."""
        ...

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        """Have `order` obeyed on `host` (its name in the inventory) and return what it answered, also a Refusal.

        Raises HostLostError where no answer came within `timeout` seconds: whether it was obeyed is not known. Raises
        HugewiseError where what came is no answer.
        """
        ...


def asked(engine: Engine, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
    """The answer, where it is not a refusal: that is a HugewiseError, and a FencedError where it is one for ever."""
    answer = engine.call(host, order, timeout)
    if isinstance(answer, Refusal):
        kind = FencedError if answer.fenced else HugewiseError
        raise kind(f"{host}: {answer.why}", hint=answer.hint)
    return answer
