"""`as-is`: the machine as it was found. It promises no page size; it shows what a change would be worth."""

from __future__ import annotations

from collections.abc import Iterable

from hugewise.model.host import Host
from hugewise.model.pages import PageSizes, PageTarget
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.policies import _thp


class AsIs:
    """Turns nothing."""

    name = "as-is"
    description = "the machine's page settings as they were found"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """Nothing is needed."""
        return None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        """Nothing is done."""
        return Treatment(policy=self.name, mechanism=mechanism, target=PageTarget("any", sizes.base))

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        """Nothing has to be changed, but for what a study has added."""
        if treatment.knobs:
            return _thp.deploy(treatment, {}, (), "the page settings as they were found, but for these")
        return Deployment(note="leave the page settings as they are")


def policies(sizes: PageSizes) -> Iterable[Policy]:  # noqa: ARG001 (every policy module is asked alike)
    """One policy, on every machine."""
    return [AsIs()]
