"""Host of clients of a run: cells whose clients run there, and the connection before each block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from hugewise import workloads
from hugewise.errors import UserError
from hugewise.machine.machine import ClientSite
from hugewise.model.host import ClientHost
from hugewise.model.procedure import Parted
from hugewise.plan.plan import Plan
from hugewise.study.study import Study

if TYPE_CHECKING:
    from hugewise.clients.host import ClientsHost


def placed(study: Study, client: ClientHost | None) -> Study:
    """Return the study with its clients where they are: of workloads that do not say, on the host `client` where there
    is one and they can. Raises UserError where the study wants one and none is named.
    """
    apart = [use.called for use in study.workload if use.client == "apart"]
    if client is None:
        if apart:
            raise UserError(
                f"{study.name}: the client of {apart[0]} is on a host of its own, and none is named",
                hint="name one of an inventory: --client NAME --hosts HOSTS.toml",
            )
        return study
    if study.guest is not None:
        raise UserError(
            f"{study.name}: its arms run in guests, where clients are beside their servers", hint="leave --client out"
        )
    known = workloads.discover()
    uses = tuple(
        msgspec.structs.replace(use, client="apart")
        if use.client is None and isinstance(known.get(use.name), Parted)
        else use
        for use in study.workload
    )
    if all(use.client != "apart" for use in uses):
        raise UserError(
            f"{study.name}: no workload of it has a client that can be on another host",
            hint="those that can: redis, memcached, pgbench, mysql-ro, tpcc, iperf3",
        )
    return msgspec.structs.replace(study, workload=uses)


class Reached:
    """The host of the clients of a session; one of a run without such clients reaches nobody."""

    def __init__(self, host: ClientHost | None) -> None:
        self.host = host
        self._reached: ClientsHost | None = None

    def open(self, plan: Plan, say: Callable[[str], None]) -> tuple[str, ...]:
        """Reach it, where a cell has clients there, and look at the network; returns what the reader is to know.

        Raises UserError, MachineError.
        """
        cells = [cell for cell in plan.cells if cell.apart]
        if self.host is None or not cells:
            return ()
        from hugewise.clients.host import ClientsHost  # noqa: PLC0415  (knows ssh)

        wanted: dict[str, None] = {}
        accesses: dict[str, None] = {}
        for cell in cells:
            assert isinstance(cell.workload, Parted)
            wanted |= dict.fromkeys(cell.workload.far_programs(cell.values))
            if (why := cell.workload.unprotected_access(cell.values)) is not None:
                accesses[why] = None
        self._reached = ClientsHost(self.host, tuple(wanted))
        say(f"reaching the host of clients {self.host.name}")
        self._reached.open()
        told = (str(self._reached), *accesses)
        for text in told:
            say(text)
        return told

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the client host's programs and of its agent."""
        found = {} if self._reached is None else self._reached.versions
        return {f"client {name}": version for name, version in found.items()}

    def site(self) -> ClientSite:
        """Return the site of an attempt's clients. Raises MachineError."""
        assert self._reached is not None, "a plan with clients apart has reached their host"
        return self._reached.site()

    def close(self) -> None:
        """Leave nothing there."""
        if self._reached is not None:
            self._reached.close()
