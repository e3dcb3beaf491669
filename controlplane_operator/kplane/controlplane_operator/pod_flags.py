"""The flags of `--runtime pods`."""

from __future__ import annotations

import argparse
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kplane.controlplane_operator.errors import SettingsError
from kplane.workloads.pods import Expose, Image, PodSettings

__all__ = ["add_pod_flags", "pod_settings", "storage_bytes"]

_PORTS: Final = {"https": 6443, "client": 2379, "peer": 2380, "metrics": 2381, "http": 8081}
_API_SERVER_CAPABILITIES: Final = ("NET_BIND_SERVICE",)
"""Upstream's images give the program's file this capability, see build/server-image/kube-apiserver in kubernetes."""
_QUANTITY: Final = re.compile(r"([1-9][0-9]*)(Mi|Gi|Ti|M|G|T)")
_UNITS: Final = {"Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "M": 10**6, "G": 10**9, "T": 10**12}
_HOST: Final = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?")


_FLAGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "--kube-apiserver-image": {"metavar": "IMAGE", "help": "with kube-apiserver on its PATH"},
    "--etcd-image": {"metavar": "IMAGE", "help": "with etcd on its PATH, for dedicated control planes"},
    "--mcm-image": {"metavar": "IMAGE", "help": "kplane's, of mcm, for registrations of mode Dedicated"},
    "--mcm-image-pull-policy": {
        "choices": ["Always", "IfNotPresent", "Never"],
        "help": "when nodes pull that image (default: IfNotPresent)",
    },
    "--metrics-from": {
        "metavar": "PEERS",
        "help": "JSON list of peers as in a NetworkPolicy of --namespace, who may read the metrics of each mcm for one"
        " registration (default: anybody)",
    },
    "--image-pull-secret": {
        "action": "append",
        "metavar": "NAME",
        "help": "Secret of --namespace for pulling images, copied to tenants' namespaces; may be repeated",
    },
    "--replicas": {"type": int, "metavar": "N", "help": "kube-apiservers of each control plane (default: 1)"},
    "--expose": {
        "choices": [each.value for each in Expose],
        "help": "type of the Services of kube-apiservers (default: ClusterIP)",
    },
    "--external-host": {
        "metavar": "HOST",
        "help": "name or address of the nodes in external URLs, with --expose NodePort",
    },
    "--storage-class": {
        "metavar": "NAME",
        "help": "of dedicated etcds' volumes (default: the cluster's default class)",
    },
    "--storage-size": {"metavar": "SIZE", "help": "of dedicated etcds' volumes (default: 10Gi)"},
    "--allow-egress": {
        "action": "append",
        "metavar": "CIDR",
        "help": "network that kube-apiservers may connect to, for tenants' webhooks; may be repeated",
    },
}


def add_pod_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags, none of them with a value of its own."""
    group = parser.add_argument_group("with --runtime pods")
    for flag, options in _FLAGS.items():
        group.add_argument(flag, **options)


def pod_settings(given: argparse.Namespace) -> PodSettings | None:
    """Return what the flags say; None for `--runtime process`. Raises SettingsError with a sentence."""
    named = _given(given)
    if given.runtime != "pods":
        if named:
            raise SettingsError(f"{', '.join(named)}: only --runtime pods has this")
        return None
    for flag, value in (("--kube-apiserver-image", given.kube_apiserver_image), ("--etcd-image", given.etcd_image)):
        if not value:
            raise SettingsError(f"--runtime pods needs {flag}, such as registry.k8s.io/etcd:3.6.8-0")
    if not given.mcm_image and (given.mcm_image_pull_policy is not None or given.metrics_from is not None):
        raise SettingsError("--mcm-image-pull-policy, --metrics-from: they are of no use without --mcm-image")
    expose = Expose(given.expose or Expose.CLUSTER_IP)
    return PodSettings(
        images={
            "kube-apiserver": Image(given.kube_apiserver_image, capabilities=_API_SERVER_CAPABILITIES),
            "etcd": Image(given.etcd_image),
            **({"mcm": _mcm_image(given)} if given.mcm_image else {}),
        },
        ports=_PORTS,
        pull_secrets=tuple(given.image_pull_secret or ()),
        pull_secrets_namespace=given.namespace,
        replicas=_replicas(given.replicas),
        expose=expose,
        external_host=_external_host(given.external_host, expose=expose),
        storage_class=given.storage_class,
        storage_size=_storage_size(given.storage_size),
        allow_egress=tuple(_network(network) for network in given.allow_egress or ()),
        metrics_from=_metrics_from(given.metrics_from, namespace=given.namespace),
    )


def _given(given: argparse.Namespace) -> list[str]:
    return [flag for flag in _FLAGS if getattr(given, flag.removeprefix("--").replace("-", "_")) is not None]


def _replicas(value: int | None) -> int:
    if value is not None and value < 1:
        raise SettingsError(f"--replicas {value}: at least 1 is needed")
    return value or 1


def _external_host(value: str | None, *, expose: Expose) -> str | None:
    if expose is Expose.NODE_PORT and not value:
        raise SettingsError("--expose NodePort needs --external-host, under which clients reach the nodes")
    if expose is not Expose.NODE_PORT and value:
        raise SettingsError(f"--external-host {value}: only --expose NodePort has this")
    if value is None:
        return None
    try:
        # As certificates write it: another form would never be found in one.
        return str(ipaddress.ip_address(value))
    except ValueError:
        if not _HOST.fullmatch(value):
            raise SettingsError(f"--external-host {value}: this is neither a host name nor an address") from None
    return value.lower()


def _storage_size(value: str | None) -> str:
    size = "10Gi" if value is None else value
    storage_bytes(size)
    return size


def storage_bytes(size: str) -> int:
    """Return how many bytes a quantity such as 10Gi is. Raises SettingsError where it is none."""
    parts = _QUANTITY.fullmatch(size)
    if parts is None:
        raise SettingsError(f"--storage-size {size}: this is no size, such as 10Gi")
    return int(parts[1]) * _UNITS[parts[2]]


def _mcm_image(given: argparse.Namespace) -> Image:
    image = Image(given.mcm_image)
    return image if given.mcm_image_pull_policy is None else replace(image, pull_policy=given.mcm_image_pull_policy)


def _metrics_from(value: str | None, *, namespace: str) -> tuple[Mapping[str, Any], ...] | None:
    if value is None:
        return None
    try:
        peers = json.loads(value)
    except ValueError as error:
        raise SettingsError(f"--metrics-from {value}: this is no JSON: {error}") from None
    if isinstance(peers, list):
        peers = [_without_nulls(peer) for peer in peers]
    if not isinstance(peers, list) or not all(_is_peer(peer) for peer in peers):
        raise SettingsError(
            f"--metrics-from {value}: this is no list of peers as in a NetworkPolicy, such as"
            ' [{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"monitoring"}}}]'
        )
    # Pods of no namespace are those beside the policy, and these policies are in tenants' namespaces.
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    return tuple({**here, **peer} if peer.keys() == {"podSelector"} else peer for peer in peers)


def _without_nulls(peer: Any) -> Any:
    return {name: part for name, part in peer.items() if part is not None} if isinstance(peer, dict) else peer


def _is_peer(peer: Any) -> bool:
    return (
        isinstance(peer, dict)
        and (peer.keys() == {"ipBlock"} or (bool(peer) and peer.keys() <= {"namespaceSelector", "podSelector"}))
        and all(isinstance(part, dict) for part in peer.values())
    )


def _network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as error:
        raise SettingsError(f"--allow-egress {value}: {error}; a network is written like 203.0.113.0/24") from None
