"""What an engine does with an order on its host: has it obeyed, as root where the inventory says so."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from hugewise import reading
from hugewise.errors import HostLostError, HugewiseError
from hugewise.fleet import orders, spool
from hugewise.fleet.orders import MOST_MESSAGE, Refusal
from hugewise.fleet.place import HostPlace, usual_spool
from hugewise.fleet.programs import talked

__all__ = ["command", "delivered", "obeyed_alone"]

_PATIENCE_S = 300.0


def command(installation: str, spool: str | None, *, root: bool, worker: int | None = None) -> list[str]:
    """The words of the program that obeys one order on a host, from its standard input."""
    words = ["sudo", "-n", "--"] if root else []
    words += [f"{installation}/bin/hugewise", "fleet", "obey"]
    words += [] if spool is None else ["--spool", spool]
    return words + ([] if worker is None else ["--worker", str(worker)])


def delivered(data: bytes, *, installation: str, spool_folder: str | None, root: bool, worker: int | None) -> bytes:
    """In the engine's worker on a host: the answer to the order in `data`. Raises nothing that can be foreseen.

    root      whether it is obeyed as root: by `sudo -n`, in a program of its own, where the worker is not
    worker    the pid of the worker, where it may be stopped while attempts are measured
    """
    if not root or os.geteuid() == 0:
        return spool.answered(data, HostPlace(Path(spool_folder) if spool_folder else usual_spool(), worker))
    words = command(installation, spool_folder, root=True, worker=worker)
    try:
        said = talked(words, data, timeout=_PATIENCE_S, most=MOST_MESSAGE)
        orders.decode_answer(said.said)
    except (HugewiseError, HostLostError) as error:
        return orders.encode(orders.refused(error))
    except reading.UnreadableError:
        return orders.encode(Refusal(why=f"hugewise as root by `sudo -n`: {said.why}"[:4000], hint=_SUDO))
    return said.said


_SUDO = "have sudo let this account call hugewise there without a password (NOPASSWD), or write root = false"


def obeyed_alone(data: bytes, place: HostPlace) -> bytes:
    """Of a program that obeys one order: its answer, and what it took of the host is counted."""
    answer = spool.answered(data, place)
    try:
        order = orders.decode_order(data)
        if not isinstance(order, orders.HelloOrder | orders.ForgetOrder):
            used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
            seconds = sum(each.ru_utime + each.ru_stime for each in used)
            spool.cost_of(order.assignment, place.spool, seconds)
    except (reading.UnreadableError, HugewiseError, OSError):
        pass  # what it took stays unknown; the answer stands
    return answer
