"""Descriptions of the programs that make up a management cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from controlplane_operator.credentials.pki import KeyPair, public_key
from workloads import DATA, FILES, Component, File, Lifetime, Port, Probe

__all__ = [
    "API_SERVER",
    "CONTROLLER_MANAGER",
    "CONTROLLER_MANAGER_PORTS",
    "ETCD",
    "ETCD_PORTS",
    "MCM",
    "OPERATOR",
    "TENANTS_ETCD",
    "api_server",
    "controller_manager",
    "etcd",
    "python",
]

ETCD: Final = "etcd"
TENANTS_ETCD: Final = "tenants-etcd"
API_SERVER: Final = "kube-apiserver"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
OPERATOR: Final = "controlplane-operator"
MCM: Final = "mcm"

_HTTPS: Final = "https"
_HTTP: Final = "http"
_PEER: Final = "peer"
ETCD_PORTS: Final = (_HTTPS, _PEER, _HTTP)
CONTROLLER_MANAGER_PORTS: Final = (_HTTPS,)

_CONTROLLERS: Final = (
    "namespace-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
)
"""What a cluster without workloads needs: namespaces that end, ServiceAccounts, garbage that is collected."""

_PACKAGES: Final = Path(__file__).resolve().parent.parent


def _pair(pair: KeyPair, *, name: str) -> dict[str, File]:
    return {f"{name}.crt": File(pair.certificate), f"{name}.key": File(pair.key)}


def _ports(ports: dict[str, int]) -> tuple[Port, ...]:
    return tuple(Port(number=number, name=name) for name, number in ports.items())


def etcd(name: str, *, host: str, ports: dict[str, int], ca: bytes, server: KeyPair, fsync: bool) -> Component:
    """Describe an etcd of one member that takes clients with a certificate of `ca` only."""
    client, peer, metrics = (ports[each] for each in ETCD_PORTS)
    tls = (
        "--{}cert-file=" + FILES + "/server.crt",
        "--{}key-file=" + FILES + "/server.key",
        "--{}trusted-ca-file=" + FILES + "/ca.crt",
        "--{}client-cert-auth=true",
    )
    return Component(
        name=name,
        program="etcd",
        args=(
            "--name=member",
            f"--data-dir={DATA}",
            f"--listen-client-urls=https://{host}:{client}",
            f"--advertise-client-urls=https://{host}:{client}",
            f"--listen-peer-urls=https://{host}:{peer}",
            f"--initial-advertise-peer-urls=https://{host}:{peer}",
            f"--initial-cluster=member=https://{host}:{peer}",
            f"--listen-metrics-urls=http://{host}:{metrics}",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=5m",
            "--log-level=warn",
            *(argument.format(prefix) for prefix in ("", "peer-") for argument in tls),
            *(() if fsync else ("--unsafe-no-fsync",)),
        ),
        files={"ca.crt": File(ca), **_pair(server, name="server")},
        ports=_ports(ports),
        data=True,
        readiness=Probe(port=_HTTP, path="/readyz", interval_seconds=0.1),
        lifetime=Lifetime.BOUND,
        grace_seconds=10.0,
    )


def api_server(
    *,
    host: str,
    port: int,
    etcd_url: str,
    etcd_ca: bytes,
    etcd_client: KeyPair,
    ca: bytes,
    server: KeyPair,
    front_proxy_ca: bytes,
    front_proxy: KeyPair,
    service_account_key: bytes,
) -> Component:
    """Describe the management cluster's kube-apiserver."""
    return Component(
        name=API_SERVER,
        program="kube-apiserver",
        args=(
            f"--bind-address={host}",
            f"--advertise-address={host}",
            f"--secure-port={port}",
            # Nobody in this cluster looks the API server up by its Service, and loopback may not stand in Endpoints.
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--profiling=false",
            f"--etcd-servers={etcd_url}",
            f"--etcd-cafile={FILES}/etcd-ca.crt",
            f"--etcd-certfile={FILES}/etcd-client.crt",
            f"--etcd-keyfile={FILES}/etcd-client.key",
            f"--client-ca-file={FILES}/ca.crt",
            f"--tls-cert-file={FILES}/server.crt",
            f"--tls-private-key-file={FILES}/server.key",
            f"--requestheader-client-ca-file={FILES}/front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={FILES}/front-proxy.crt",
            f"--proxy-client-key-file={FILES}/front-proxy.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={FILES}/sa.pub",
            f"--service-account-signing-key-file={FILES}/sa.key",
        ),
        files={
            "ca.crt": File(ca),
            "etcd-ca.crt": File(etcd_ca),
            "front-proxy-ca.crt": File(front_proxy_ca),
            "sa.key": File(service_account_key),
            "sa.pub": File(public_key(service_account_key)),
            **_pair(server, name="server"),
            **_pair(etcd_client, name="etcd-client"),
            **_pair(front_proxy, name="front-proxy"),
        },
        ports=_ports({_HTTPS: port}),
        readiness=Probe(port=_HTTPS, path="/readyz", ca="ca.crt", interval_seconds=0.1),
        lifetime=Lifetime.BOUND,
        grace_seconds=5.0,
    )


def controller_manager(
    *, host: str, ports: dict[str, int], kubeconfig: bytes, ca: bytes, server: KeyPair, service_account_key: bytes
) -> Component:
    """Describe the management cluster's kube-controller-manager: the controllers that every Kubernetes API needs."""
    return Component(
        name=CONTROLLER_MANAGER,
        program="kube-controller-manager",
        args=(
            f"--kubeconfig={FILES}/kubeconfig",
            f"--bind-address={host}",
            f"--secure-port={ports[_HTTPS]}",
            f"--tls-cert-file={FILES}/server.crt",
            f"--tls-private-key-file={FILES}/server.key",
            f"--controllers={','.join(_CONTROLLERS)}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={FILES}/sa.key",
            f"--root-ca-file={FILES}/ca.crt",
            "--leader-elect=false",
            "--profiling=false",
        ),
        files={
            "kubeconfig": File(kubeconfig),
            "ca.crt": File(ca),
            "sa.key": File(service_account_key),
            **_pair(server, name="server"),
        },
        ports=_ports(ports),
        readiness=Probe(port=_HTTPS, path="/healthz", ca="ca.crt"),
        lifetime=Lifetime.BOUND,
        grace_seconds=5.0,
    )


def python(name: str, *, module: str, args: Sequence[str], host: str, port: int, kubeconfig: bytes) -> Component:
    """Describe one of our operators: the same interpreter and packages as here, and a kubeconfig of its own."""
    return Component(
        name=name,
        program=sys.executable,
        args=("-m", module, f"--kubeconfig={FILES}/kubeconfig", f"--listen={host}:{port}", *args),
        files={"kubeconfig": File(kubeconfig)},
        env={"PYTHONPATH": str(_PACKAGES)},
        ports=_ports({_HTTP: port}),
        readiness=Probe(port=_HTTP, path="/readyz"),
        lifetime=Lifetime.BOUND,
        grace_seconds=20.0,
    )
