"""Pods of a Service and their target ports, with the rules of kubectl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kplane.provider.errors import ProviderError

__all__ = ["PodPort", "selector_of", "serving"]


@dataclass(frozen=True, slots=True)
class PodPort:
    """A port of a pod."""

    pod: str
    """Name of the pod."""
    port: int


def selector_of(service: Mapping[str, Any]) -> str:
    """Return the label selector of the pods of a Service. Raises ProviderError if the Service has none."""
    labels = service["spec"].get("selector")
    if not labels:
        raise ProviderError(f"{_title(service)} has no selector; forward to one of its pods")
    return ",".join(f"{name}={value}" for name, value in labels.items())


def serving(service: Mapping[str, Any], port: int, *, pods: Iterable[Mapping[str, Any]]) -> list[PodPort]:
    """Return the target ports of a port of a Service in its ready `pods`, sorted by the time since they are ready.

    Raises ProviderError if the Service has no such port, or no ready pod with the target port.
    """
    service_port = next((entry for entry in service["spec"].get("ports") or [] if entry["port"] == port), None)
    if service_port is None:
        raise ProviderError(f"{_title(service)} has no port {port}; choose one of its spec.ports")
    ready = {pod["metadata"]["name"]: (since, pod) for pod in pods if (since := _ready_since(pod)) is not None}
    if not ready:
        raise ProviderError(f"{_title(service)} has no pod that is ready; wait until one is")
    # DNS resolves a headless Service to its pods, without a mapping of ports: the port is the port of the pods.
    target = port if service["spec"].get("clusterIP") == "None" else service_port.get("targetPort") or port
    ordered = sorted(ready.items(), key=lambda item: (item[1][0], item[0]))
    numbers = [(name, _number(target, pod=pod)) for name, (_, pod) in ordered]
    targets = [PodPort(name, number) for name, number in numbers if number is not None]
    if not targets:
        raise ProviderError(
            f"{_title(service)} leads to port {target!r}, which no pod that is ready has; name it there"
        )
    return targets


def _title(service: Mapping[str, Any]) -> str:
    return f"Service {service['metadata']['name']}"


def _ready_since(pod: Mapping[str, Any]) -> str | None:
    """Return the time since which a pod is ready; None if the pod is not ready, or is being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return None
    conditions = (pod.get("status") or {}).get("conditions") or []
    ready = next((entry for entry in conditions if entry["type"] == "Ready" and entry["status"] == "True"), None)
    return (ready.get("lastTransitionTime") or "") if ready is not None else None


def _number(target: int | str, *, pod: Mapping[str, Any]) -> int | None:
    """Return the number of a target port, which is a number or the name of a container's port; None if missing."""
    if isinstance(target, int):
        return target
    init_containers = pod["spec"].get("initContainers") or []
    sidecars = [container for container in init_containers if container.get("restartPolicy") == "Always"]
    for container in [*pod["spec"]["containers"], *sidecars]:
        for port in container.get("ports") or []:
            if port.get("name") == target:
                return int(port["containerPort"])
    return None
