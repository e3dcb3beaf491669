"""Writes conditions.md: the reasons of the conditions of both operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kplane.api.reasons import reason_tables
from kplane.mcm.reasons import Reason
from tools.reference.markdown import code, page, table
from tools.reference.sources import ROOT, attributes, parsed

__all__ = ["conditions"]

_STATUSES: Final = {Reason.INSTANCE_RUNNING: "True", Reason.HEARTBEAT_STALE: "Unknown"}
"""Status of the condition Running, by reason of mcm; False for all other reasons."""


def conditions() -> str:
    """Return the page."""
    return page(
        "Reasons of conditions",
        "This page lists each reason that a condition of a kplane object can have, and what to do about it.",
        "*Retried* says when the operator looks at the object again: always after an event, and by time as well if it"
        " says so. The phase of a control plane follows from the reason of `Ready`. After it was published, its phase"
        " is `Unavailable` while the operator retries by itself, and `Failed` while a person has to act."
        " *Cause* `User` means that its author mends it. It is a label of the metric of control planes that are not"
        " Ready, and so of the [alerts](../troubleshoot/alerts.md).",
        "\n".join(reason_tables()).rstrip(),
        "## ControlPlaneRegistration: `Running`",
        "mcm writes this condition. It counts the ends of instances by reason in `mcm_instance_exits_total`.",
        table(["reason", "status", "meaning"], _running()),
    )


def _running() -> Iterator[list[str]]:
    """Yield a row for each reason of mcm."""
    module = parsed(ROOT / "mcm" / "kplane" / "mcm" / "reasons.py")
    [kind] = [node for node in module.body if getattr(node, "name", "") == "Reason"]
    described = {attribute.name: attribute.documentation for attribute in attributes(getattr(kind, "body", []))}
    for reason in Reason:
        yield [code(reason), _STATUSES.get(reason, "False"), described[reason.name]]
