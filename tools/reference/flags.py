"""Writes flags.md: the flags of the three programs."""

from __future__ import annotations

from kplane.api.configuration import Configuration
from kplane.controlplane_operator.config import OperatorConfig
from kplane.gateway.settings import Settings as GatewaySettings
from kplane.mcm.settings import Settings as McmSettings
from tools.reference.markdown import page

__all__ = ["flags"]

_PROGRAMS: tuple[type[Configuration], ...] = (OperatorConfig, McmSettings, GatewaySettings)


def flags() -> str:
    """Return the page."""
    sections = []
    for program in _PROGRAMS:
        lines = "\n".join(program.reference()).rstrip()
        sections += [f"## Flags of {program.program}", program.description, lines]
    return page(
        "Flags",
        "This page lists the flags of the three programs, with the environment variables that can take their place.",
        "A flag wins over its variable. A variable with several items separates them by spaces, quoted as in a shell.",
        *sections,
    )
