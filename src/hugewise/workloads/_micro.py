"""What the probe's own micro-workloads have in common: the treatment reaches them by madvise or MAP_HUGETLB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hugewise.model.policy import Treatment
from hugewise.model.workload import Launch, Missing, ParameterValue, RunsAs

WITHOUT_OTHERS = "it would fail where the kernel has no such page to give: it maps no others then"


def whole_pages(size: int, page: int) -> int:
    """`size` rounded up to whole pages of `page` bytes."""
    return -(-size // page) * page


class Micro:
    """A micro-workload of the probe that names its memory and holds it for the proof.

    A subclass gives name, description, parameters, metrics and `arguments`; parameters that the probe spells alike
    are passed on as `--name value`.
    """

    subcommand: str
    account: RunsAs = "unprivileged"
    delivered_share = 0.95

    def refuses(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> str | None:
        """Every treatment can be taken: the mapping is our own."""
        return None

    def missing(self, values: Mapping[str, ParameterValue]) -> tuple[Missing, ...]:
        """Nothing beside the probe is needed."""
        return ()

    def launch(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> Launch:
        """The probe's own subcommand with the treatment's mapping and advice."""
        argv = [self.subcommand]
        for name, value in values.items():
            option = f"--{name.replace('_', '-')}"
            if value is True:
                argv.append(option)
            elif value is not False:
                argv += [option, str(value)]
        if treatment.map_hugetlb is not None:
            argv += ["--map", f"hugetlb:{treatment.map_hugetlb}"]
        if treatment.surplus:
            argv.append("--or-base")
        if treatment.advice != "none":
            argv += ["--advice", treatment.advice]
        return Launch(argv=tuple(argv), micro=True, proof="ranges")

    def memory(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        """The touched bytes, in whole pages of the treatment."""
        return whole_pages(self.footprint(values), treatment.target.size)

    def pool(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        """The same, where the pages come from a hugetlb pool."""
        return self.memory(treatment, values) if treatment.map_hugetlb is not None else 0

    def footprint(self, values: Mapping[str, ParameterValue]) -> int:
        """Bytes that the workload touches."""
        size = values["bytes"]
        assert isinstance(size, int)
        return size


class ResidentMicro(Micro):
    """One that can hold several layouts of its memory in one process, and work on them in turns."""

    def launch_together(
        self, treatments: Sequence[Treatment], values: Mapping[str, ParameterValue], turns: str
    ) -> Launch:
        """The first treatment's mapping and advice, and the others beside it."""
        first = self.launch(treatments[0], values)
        argv = list(first.argv)
        for treatment in treatments[1:]:
            mapped = "anon" if treatment.map_hugetlb is None else f"hugetlb:{treatment.map_hugetlb}"
            argv += ["--beside", f"{mapped},{treatment.advice}"]
        return Launch(argv=(*argv, "--turns", turns), micro=True, proof="ranges")
