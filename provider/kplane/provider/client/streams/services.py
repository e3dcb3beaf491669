"""Which pods serve a Service, and on which of their ports, as kubectl finds them."""

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
        raise ProviderError(f"{_named(service)} has no selector; forward to one of its pods")
    return ",".join(f"{name}={value}" for name, value in labels.items())


def serving(service: Mapping[str, Any], port: int, *, pods: Iterable[Mapping[str, Any]]) -> list[PodPort]:
    """Return where a port of a Service leads: to each of `pods` that is ready, the one that is ready longest first.

    Raises ProviderError if the Service has no such port, or no pod that is ready and has it.
    """
    found = next((each for each in service["spec"].get("ports") or [] if each["port"] == port), None)
    if found is None:
        raise ProviderError(f"{_named(service)} has no port {port}; choose one of its spec.ports")
    ready = {pod["metadata"]["name"]: (since, pod) for pod in pods if (since := _ready_since(pod)) is not None}
    if not ready:
        raise ProviderError(f"{_named(service)} has no pod that is ready; wait until one is")
    # The name of a headless Service leads to the pods themselves, so its port is theirs.
    target = port if service["spec"].get("clusterIP") == "None" else found.get("targetPort") or port
    ordered = sorted(ready.items(), key=lambda each: (each[1][0], each[0]))
    led = [(name, _number(target, pod=pod)) for name, (_, pod) in ordered]
    targets = [PodPort(name, number) for name, number in led if number is not None]
    if not targets:
        raise ProviderError(
            f"{_named(service)} leads to port {target!r}, which no pod that is ready has; name it there"
        )
    return targets


def _named(service: Mapping[str, Any]) -> str:
    return f"Service {service['metadata']['name']}"


def _ready_since(pod: Mapping[str, Any]) -> str | None:
    """Return since when a pod is ready; None if it is not, or is about to end."""
    if pod["metadata"].get("deletionTimestamp"):
        return None
    conditions = (pod.get("status") or {}).get("conditions") or []
    found = next((each for each in conditions if each["type"] == "Ready" and each["status"] == "True"), None)
    return (found.get("lastTransitionTime") or "") if found is not None else None


def _number(target: int | str, *, pod: Mapping[str, Any]) -> int | None:
    """Return the number of a port of a pod that is given by its number, or by the name that a container gives it."""
    if isinstance(target, int):
        return target
    sidecars = [each for each in pod["spec"].get("initContainers") or [] if each.get("restartPolicy") == "Always"]
    for container in [*pod["spec"]["containers"], *sidecars]:
        for port in container.get("ports") or []:
            if port.get("name") == target:
                return int(port["containerPort"])
    return None
