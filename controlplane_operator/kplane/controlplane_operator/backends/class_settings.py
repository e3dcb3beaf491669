"""Translates settings of a class into descriptions for the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kplane.api import (
    DEFAULT_SERVICE_CIDR,
    ApiServerSettings,
    ControlPlane,
    ControlPlaneClass,
)
from kplane.api.resource import ApiModel
from kplane.components.canonical import canonical_lists, canonical_set
from kplane.workloads import Exposure, Scheduling

__all__ = ["api_server_settings", "exposure_of", "scheduling_of", "service_cidr_of", "takes_our_tokens"]

_NONE: Final = ApiServerSettings()
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
"""Field of terms whose weights the scheduler adds up."""


def api_server_settings(chosen: ControlPlaneClass | None) -> ApiServerSettings:
    """Return the API server settings of the class, or defaults."""
    return (chosen.spec.api_server if chosen is not None else None) or _NONE


def takes_our_tokens(chosen: ControlPlaneClass | None) -> bool:
    """Return whether API servers of the class accept tokens that kplane signs.

    They do unless flags of the class set audiences or the maximum lifetime of tokens.
    """
    flags = [flag.partition("=")[0] for flag in api_server_settings(chosen).extra_args]
    return not {"--api-audiences", "--service-account-max-token-expiration"}.intersection(flags)


def service_cidr_of(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None, kept: str | None) -> str:
    """Return the Service network of a control plane: the recorded value, or that of the class for a new control plane.

    `kept` is the network of the data that the namespace retains, if any. A control plane that was published before the
    network was recorded has the default.
    """
    if control_plane.status.service_cidr is not None:
        return control_plane.status.service_cidr
    if kept is not None:
        return kept
    if control_plane.status.endpoint is not None:
        return DEFAULT_SERVICE_CIDR
    return api_server_settings(chosen).service_cidr or DEFAULT_SERVICE_CIDR


def scheduling_of(chosen: ControlPlaneClass | None) -> Scheduling | None:
    """Return the scheduling of the pods of a control plane; None if pods may run on any node."""
    pods = chosen.spec.pods if chosen is not None else None
    if pods is None:
        return None
    spread = pods.topology_spread_constraints
    return Scheduling(
        node_selector=pods.node_selector,
        tolerations=_as_set(pods.tolerations),
        affinity=canonical_lists(pods.affinity, weighted=(_PREFERRED,)),
        priority_class=pods.priority_class_name,
        topology_spread=_as_set(spread) if spread is not None else None,
    )


def exposure_of(chosen: ControlPlaneClass | None) -> Exposure:
    """Return the settings of the Service through which clients outside the cluster reach the API server."""
    service = chosen.spec.service if chosen is not None else None
    if service is None:
        return Exposure()
    return Exposure(annotations=service.annotations, load_balancer_class=service.load_balancer_class)


def _as_set(models: Sequence[ApiModel]) -> tuple[dict[str, Any], ...]:
    return tuple(canonical_set(model.model_dump(mode="json", by_alias=True, exclude_none=True) for model in models))
