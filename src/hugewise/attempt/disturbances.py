"""What disturbed an attempt: rules over the counters before and after it (`hugewise.machine.noise`).

Everything here only flags: an attempt is never dropped for its noise, since noise may be what the treatment itself
causes. For the same reason the work of khugepaged, kcompactd and kswapd, compaction and pressure are recorded, but no
rule judges them.
"""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.machine.noise import CPU, TICK, Difference
from hugewise.study.tables import Validity

__all__ = ["disturbances"]

# Clock sources that cost a device access for each reading; every other one is read from the CPU itself.
_SLOW_CLOCKS = ("hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies")
_THP_TOLERANCE = 0.05  # share of memory: see `disturbances`


def disturbances(change: Difference, rules: Validity) -> tuple[str, ...]:
    """What broke the study's rules between two snapshots, a sentence each; empty when the host was quiet.

    Both snapshots are to be taken while no attempt lives. Three rules need more than a comparison:

    - steal is counted in clock ticks, so it must be above the rule by more than one tick;
    - the load average contains the attempt itself, and earlier ones. The load of others is the average times their
      share of the CPU time used between the snapshots, so that a program with many threads does not flag itself;
    - huge pages of other programs flag when their amount changed: by any page of a hugetlb pool, or for transparent
      ones by more than 5% of memory. Under an arm that turns THP on for the whole machine every program gets some;
      a lower limit would flag that arm for what it does itself.
    """
    before, after = change.before, change.after
    found: list[str] = []
    capacity = change.elapsed_s * after.cpus
    if capacity > 0 and change.steal_s - TICK > rules.steal * capacity:
        found.append(f"steal {change.steal_s / capacity:.1%} of CPU time (rule: at most {rules.steal * 100:g}%)")
    if change.other_load is not None and change.other_load > rules.load_per_cpu * after.cpus:
        load = change.other_load / after.cpus
        found.append(f"load of other processes {load:.1f} per CPU (rule: at most {rules.load_per_cpu:g})")
    if rules.swap and change.swap_pages:
        found.append(f"{change.swap_pages:,} pages swapped (rule: none)")
    if rules.throttling:
        if change.throttles:
            found.append(f"throttled for heat at least {change.throttles:,} times (rule: none)")
        found += [
            f"{path.removeprefix(f'{CPU}/')} changed from {before.frequency.get(path)} to {value} (rule: no change)"
            for path, value in after.frequency.items()
            if before.frequency.get(path) != value
        ]
    if rules.clock_source:
        if before.clock_source != after.clock_source:
            found.append(f"clock source changed from {before.clock_source} to {after.clock_source} (rule: no change)")
        elif after.clock_source in _SLOW_CLOCKS:
            found.append(f"clock source {after.clock_source} is slow to read (rule: the CPU's own counter)")
    if rules.other_huge_page_users:
        found += _huge_page_users(change, after.memory_bytes)
    return tuple(found)


def _huge_page_users(change: Difference, memory_bytes: int | None) -> Iterator[str]:
    for kind, delta in change.huge_in_use.items():
        moved = f"huge pages of other programs ({kind}) changed by {delta / (1 << 20):+,.0f} MiB"
        if kind.startswith("hugetlb:"):
            if delta:
                yield f"{moved} (rule: none)"
        elif memory_bytes is not None and abs(delta) > _THP_TOLERANCE * memory_bytes:
            yield f"{moved} (rule: at most {_THP_TOLERANCE:.0%} of memory)"
