"""The Service of a component, which is its address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kplane.workloads.pods.objects import Object, labels_of, metadata_of
from kplane.workloads.pods.settings import Expose, Placement, PodSettings
from kplane.workloads.runtime import Exposure

__all__ = ["serves", "service", "with_load_balancer_of"]

_ANNOTATIONS: Final = "controlplane.kplane.dev/annotations"
"""Annotation with the names of the annotations of the class. A removed annotation is detected by it."""


def service(
    name: str, *, placement: Placement, ports: Mapping[str, int], settings: PodSettings, exposed: Exposure | None
) -> Object:
    """Describe the Service, which is the component's address from `reserve` on, even before a pod exists."""
    kind = settings.expose if exposed is not None else Expose.CLUSTER_IP
    metadata = metadata_of(name, placement=placement)
    spec: Object = {
        "type": kind.value,
        "selector": labels_of(name, placement=placement),
        "ports": [
            {"name": port, "port": number, "targetPort": number, "protocol": "TCP"} for port, number in ports.items()
        ],
    }
    if placement.group is not None:
        spec["publishNotReadyAddresses"] = True
    if exposed is not None and exposed.annotations:
        metadata["annotations"] = {**exposed.annotations, _ANNOTATIONS: ",".join(sorted(exposed.annotations))}
    if exposed is not None and exposed.load_balancer_class is not None and kind is Expose.LOAD_BALANCER:
        spec["loadBalancerClass"] = exposed.load_balancer_class
    return {"metadata": metadata, "spec": spec}


def with_load_balancer_of(known: Object, wanted: Object) -> Object:
    """Return the desired Service with the existing class of load balancer: Kubernetes refuses a change of the class."""
    if known["spec"].get("type") != Expose.LOAD_BALANCER or wanted["spec"]["type"] != Expose.LOAD_BALANCER:
        return wanted
    rest = {key: value for key, value in wanted["spec"].items() if key != "loadBalancerClass"}
    present = known["spec"].get("loadBalancerClass")
    return {**wanted, "spec": rest | ({"loadBalancerClass": present} if present is not None else {})}


def serves(known: Object, wanted: Object) -> bool:
    """Return whether the existing Service has the desired target and annotations; other fields are ignored."""

    def ways(found: Object) -> list[tuple[str, int, int]]:
        return [(port["name"], port["port"], port["targetPort"]) for port in found["spec"].get("ports", ())]

    same = all(known["spec"].get(key) == wanted["spec"].get(key) for key in ("type", "selector"))
    early = [bool(found["spec"].get("publishNotReadyAddresses")) for found in (known, wanted)]
    return same and early[0] == early[1] and ways(known) == ways(wanted) and _is_annotated(known, wanted)


def _is_annotated(known: Object, wanted: Object) -> bool:
    present, described = (obj["metadata"].get("annotations") or {} for obj in (known, wanted))
    ours = {name: present.get(name) for name in described}
    return ours == described and present.get(_ANNOTATIONS) == described.get(_ANNOTATIONS)
