"""What of a host's settings is a run's of hugewise: by root's journal, which everybody may read.

Such a run adds pages to pools and gives them back at its end. Whoever audits the host meanwhile is to be told of the
run, and not that its pages are idle, or lost at the next boot.
"""

from __future__ import annotations

import re

from hugewise.audit.facts import OwnRun
from hugewise.audit.root import Root
from hugewise.errors import UserError
from hugewise.host.journal import JOURNAL, ledger_of
from hugewise.host.ledger import Share
from hugewise.machine.proc import start_time

__all__ = ["own_run"]

_MOST = 64 << 20  # bytes of a journal
_POOL = re.compile(r"/hugepages-(\d{1,12})kB/nr_hugepages$")


def own_run(root: Root) -> tuple[OwnRun | None, dict[int, int]]:
    """The run that has settings of this host turned, and the pages that it has added, by their size in bytes; no run
    where the journal is closed, of another boot, or not to be read (which is noted).
    """
    data = root.data(str(JOURNAL), _MOST)
    if data is None:
        return None, {}
    try:
        ledger = ledger_of(data, JOURNAL)
    except UserError as error:
        root.tell(str(JOURNAL), error.message.removeprefix(f"{JOURNAL}, "))
        return None, {}
    owner = ledger.owner
    boot = (root.text("/proc/sys/kernel/random/boot_id", 256) or "").strip()
    if owner is None or ledger.closed or owner.boot_id != boot:
        return None, {}
    added: dict[int, int] = {}
    for path, share in ledger.pools.items():
        if (match := _POOL.search(path)) is not None:
            size = int(match[1]) << 10
            added[size] = added.get(size, 0) + _own(share)
    alive = start_time(root, owner.pid) == owner.pid_start
    return OwnRun(name=owner.run, pid=owner.pid, alive=alive), added


def _own(share: Share) -> int:
    """Pages of it that are still the run's."""
    if share.returned is not None:
        return max(0, share.returned.wrote - share.before)
    return share.added or 0
