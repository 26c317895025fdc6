"""Did the pages that a policy promises really back the attempt? Judged by the proof alone, never by the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from hugewise.model.pages import PageTarget
from hugewise.model.trial import Delivery
from hugewise.model.workload import Proof
from hugewise.quantity import format_size

__all__ = ["judge", "total"]

_KINDS = {"base": ("anon", "shmem"), "thp": ("anon", "shmem"), "mthp": ("anon", "shmem"), "hugetlb": ("hugetlb",)}


def total(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of several processes' coverage, in bytes by `kind:page size`; empty entries are left out."""
    added: Counter[str] = Counter()
    for part in parts:
        added.update(part)
    return {key: size for key, size in sorted(added.items()) if size}


def judge(
    target: PageTarget,
    coverage: Mapping[str, int],
    *,
    proof: Proof,
    source: str,
    share: float,
    base_above: float,
    thp_disabled: bool | None = None,
    problem: str | None = None,
) -> Delivery:
    """Hold `coverage` (bytes by `kind:page size`) against `target`.

    Delivered means: at least `share` of the bytes at the promised size; for base pages at most `base_above` of the
    bytes above the base size. What cannot be told apart counts for neither side: where it could decide, the delivery
    is unproven (None). `share` 0 demands nothing: the setting itself is judged (intention to treat); what was found is
    still told, or why nothing was. `problem` says why there is no proof, if there is none.
    """
    whole = sum(coverage.values())
    stated = sum(coverage.get(f"{kind}:{target.size}", 0) for kind in _KINDS.get(target.kind, ()))
    unknown = coverage.get("unproven", 0)
    part = stated / whole if whole and target.kind != "any" else None

    def verdict(delivered: bool | None, reason: str | None = None) -> Delivery:
        return Delivery(
            target=target,
            delivered=delivered,
            share=part,
            coverage=coverage,
            proof=proof,
            source=source,
            reason=reason,
        )

    if target.kind == "any":
        return verdict(True)
    if part is None:
        return verdict(True if share == 0 else None, problem or "no memory was found to prove it by")
    if share == 0:
        return verdict(True)
    needed = 1 - base_above if target.kind == "base" else share
    if part >= needed:
        return verdict(True)
    if part + unknown / whole >= needed:
        return verdict(None, "these page sizes cannot be told apart without root (unproven)")
    return verdict(False, _why(target, coverage, part, thp_disabled))


def _why(target: PageTarget, coverage: Mapping[str, int], part: float, thp_disabled: bool | None) -> str:
    if target.kind == "base":
        above = max((key for key in coverage if key != "unproven"), key=lambda key: int(key.split(":")[1]))
        return f"larger pages were used ({above.split(':')[0]} {format_size(int(above.split(':')[1]))})"
    found = f"{part:.1%} of the memory at {format_size(target.size)}"
    if thp_disabled and target.kind in ("thp", "mthp"):
        return f"the program disabled THP for itself ({found})"
    if target.kind == "hugetlb":
        return f"the pool was too short, or the program did not map from it ({found})"
    return f"memory too small, unaligned or fragmented for the page size, or freed before the end ({found})"
