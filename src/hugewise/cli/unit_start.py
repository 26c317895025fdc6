"""How the service that `--unit` names is started on this host, for its drop-in."""

from __future__ import annotations

from hugewise.deployment.unit_start import UnitStart

__all__ = ["of_host"]


def of_host(unit: str) -> UnitStart | None:
    """By its files; None where this host has no such service. Raises UserError for what is no name of a unit."""
    from hugewise.audit.root import Root  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.audit.unit_start import unit_start  # noqa: PLC0415
    from hugewise.deployment.quoting import unit_name  # noqa: PLC0415

    return unit_start(Root(), unit_name(unit))
