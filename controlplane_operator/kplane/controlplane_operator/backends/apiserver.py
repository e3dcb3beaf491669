"""A control plane's kube-apiserver."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import yaml

from kplane.controlplane_operator.backends.etcd import EtcdAccess
from kplane.controlplane_operator.pki.authorities import TenantAuthorities, TenantCertificates
from kplane.controlplane_operator.pki.primitives import KeyPair
from kplane.workloads import FILES, Address, Component, File, Port, Probe, Reach, Resources

__all__ = [
    "API_SERVER",
    "API_SERVER_PORTS",
    "API_SERVER_RESOURCES",
    "DNS_ADDRESS",
    "SERVICE_RANGE",
    "api_server_component",
    "external_url",
    "server_url",
    "serving_hosts",
]

API_SERVER: Final = "kube-apiserver"
"""Name of the program."""

_HTTPS: Final = "https"
API_SERVER_PORTS: Final = (_HTTPS,)
"""What `Runtime.reserve` is asked for."""

SERVICE_RANGE: Final = "10.96.0.0/16"
DNS_ADDRESS: Final = "10.96.0.10"
"""Where kubelets expect the cluster's DNS: the tenth address of the range, by kubeadm's rule."""
_SERVICE_ADDRESS: Final = "10.96.0.1"
"""First address of the range: the Service default/kubernetes."""
_ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
"""The same for every control plane: the keys differ, and a tenant that moves keeps its tokens."""
_ANONYMOUS_PATHS: Final = (
    "/livez",
    "/readyz",
    "/healthz",
    # What `kubeadm join` reads before it trusts the server. RBAC lets it only where add-on kubeadm-join is installed.
    "/api/v1/namespaces/kube-public/configmaps/cluster-info",
)

API_SERVER_RESOURCES: Final = Resources(cpu_request="100m", memory_request="256Mi", memory_limit="2Gi")
"""An empty one takes 159 MiB, see docs/measured.md; the limit keeps one tenant from taking the others' memory.
They apply unless spec or class set others."""

_ENVIRONMENT: Final = {"GOGC": "50"}
"""Measured: 150 MiB (PSS) in the place of 200, see docs/measured.md."""


def serving_hosts(address: Address) -> tuple[str, ...]:
    """Names and addresses that the API server's certificate must be for."""
    names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
    external = (address.external.host,) if address.external is not None else ()
    return (address.host, *external, *names, "kubernetes.default.svc.cluster.local", _SERVICE_ADDRESS)


def server_url(address: Address) -> str:
    """URL under which the API server is reached by other components."""
    return _url(address.host, address.ports[_HTTPS])


def external_url(address: Address) -> str:
    """URL under which the API server is reached from outside."""
    if address.external is None:
        return server_url(address)
    return _url(address.external.host, address.external.ports[_HTTPS])


def _url(host: str, port: int) -> str:
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def api_server_component(
    name: str,
    *,
    address: Address,
    authorities: TenantAuthorities,
    certificates: TenantCertificates,
    etcd: EtcdAccess,
    etcd_prefix: str,
    etcd_shared: bool,
    version: str | None = None,
    resources: Resources = API_SERVER_RESOURCES,
) -> Component:
    """Describe the kube-apiserver of a control plane. Equal arguments give an equal description.

    `etcd_prefix` is where its keys lie, without a slash at the end. An API server on an etcd that others share
    (`etcd_shared`) neither compacts it nor looks into its size: both would need rights beyond its prefix. `version` is
    that of `Component`.
    """
    port = address.ports[_HTTPS]
    return Component(
        name=name,
        program=API_SERVER,
        version=version,
        args=(
            f"--bind-address={address.listen}",
            # If the host is a name, the API server finds its own address, which it does not publish, see below.
            *(() if address.bind else (f"--advertise-address={address.host}",)),
            f"--secure-port={port}",
            # Pods that would look up default/kubernetes need a routable address, which loopback is not.
            "--endpoint-reconciler-type=none",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--etcd-servers={','.join(etcd.endpoints)}",
            f"--etcd-prefix={etcd_prefix}",
            f"--etcd-cafile={FILES}/etcd-ca.crt",
            f"--etcd-certfile={FILES}/etcd-client.crt",
            f"--etcd-keyfile={FILES}/etcd-client.key",
            *(("--etcd-compaction-interval=0", "--etcd-db-metric-poll-interval=0") if etcd_shared else ()),
            f"--tls-cert-file={FILES}/server.crt",
            f"--tls-private-key-file={FILES}/server.key",
            f"--client-ca-file={FILES}/client-ca.crt",
            f"--authentication-config={FILES}/authentication.yaml",
            "--enable-bootstrap-token-auth=true",
            f"--requestheader-client-ca-file={FILES}/front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={FILES}/front-proxy-client.crt",
            f"--proxy-client-key-file={FILES}/front-proxy-client.key",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={FILES}/sa.pub",
            f"--service-account-signing-key-file={FILES}/sa.key",
            "--authorization-mode=Node,RBAC",
            "--profiling=false",
            # Otherwise a stop waits up to a minute for open watches.
            "--shutdown-watch-termination-grace-period=2s",
        ),
        files={
            # kube-apiserver re-reads its serving certificate, its client CAs and its etcd client certificate.
            **_pair("server", certificates.api_server),
            **_pair("etcd-client", certificates.etcd_client),
            **_pair("front-proxy-client", certificates.front_proxy),
            "client-ca.crt": File(authorities.client_trust, reloaded=True),
            "serving-ca.crt": File(authorities.serving_trust, reloaded=True),
            "front-proxy-ca.crt": File(authorities.front_proxy_trust, reloaded=True),
            "etcd-ca.crt": File(etcd.ca),
            # Unlike those, it reads the keys of ServiceAccount tokens once: for others it is started again.
            "sa.key": File(authorities.service_account_key),
            "sa.pub": File(authorities.service_account_trust),
            "authentication.yaml": File(_authentication()),
        },
        env=_ENVIRONMENT,
        ports=(Port(number=port, name=_HTTPS),),
        readiness=Probe(port=_HTTPS, path="/readyz", ca="serving-ca.crt"),
        resources=resources,
        # Without etcd it is not ready, and to start it again would mend nothing.
        liveness_path="/livez?exclude=etcd",
        reaches=tuple(
            Reach(port=port, component=etcd.component, namespace=etcd.namespace)
            for port in sorted({urlsplit(endpoint).port or 443 for endpoint in etcd.endpoints})
        ),
        grace_seconds=10.0,
    )


def _pair(name: str, pair: KeyPair) -> dict[str, File]:
    return {
        f"{name}.crt": File(pair.certificate, reloaded=True),
        f"{name}.key": File(pair.key, reloaded=True),
    }


def _authentication() -> bytes:
    """Allow anonymous requests only for health checks, and for what joining nodes start from."""
    configuration = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "anonymous": {"enabled": True, "conditions": [{"path": path} for path in _ANONYMOUS_PATHS]},
    }
    return yaml.safe_dump(configuration, sort_keys=False).encode()
