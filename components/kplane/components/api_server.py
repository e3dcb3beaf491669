"""Description of a control plane's kube-apiserver."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network
from typing import Final
from urllib.parse import urlsplit

from kplane.api import DEFAULT_SERVICE_CIDR, SERVICE_ACCOUNT_ISSUER, ApiServerMemory, ApiServerSettings
from kplane.components.api_server_configuration import (
    audit_configuration,
    authentication_configuration,
    encryption_configuration,
)
from kplane.components.canonical import canonical_flags
from kplane.components.egress import Egress
from kplane.components.etcd import EtcdAccess
from kplane.pki.authorities import TenantAuthorities, TenantCertificates
from kplane.pki.primitives import KeyPair
from kplane.workloads import FILES, Address, Component, Fallback, File, Port, Probe, Reach, Resources, Scheduling

__all__ = [
    "API_SERVER",
    "API_SERVER_PORTS",
    "API_SERVER_RESOURCES",
    "READY",
    "api_server_component",
    "bootstrap_arguments",
    "dns_address",
    "external_url",
    "server_url",
    "serving_hosts",
]

API_SERVER: Final = "kube-apiserver"
"""Name of the program."""

READY: Final = "/readyz"
"""Path that answers 200 once an API server serves and its data are bootstrapped."""
_HTTPS: Final = "https"
API_SERVER_PORTS: Final = (_HTTPS,)
"""Ports to reserve with `Runtime.reserve`."""

API_SERVER_RESOURCES: Final = Resources(cpu_request="100m", memory_request="256Mi", memory_limit="2Gi")
"""Default resources, unless spec or class set others. An empty API server takes 159 MiB, see
docs/reference/benchmarks/memory.md. The limit keeps a tenant from taking the memory of other tenants."""

_KEYS_URL_FLAGS: Final = frozenset({"--service-account-jwks-uri", "--external-hostname"})
"""Flags of a class that determine the URL of the keys in the discovery document."""

_PROBE_SECONDS: Final = 0.05
"""Interval of the readiness probe, in seconds: a request may be waiting for the API server."""

_GOGC: Final = {ApiServerMemory.SMALL: 25, ApiServerMemory.BALANCED: 50, ApiServerMemory.LARGE: 100}
"""Percent by which the heap may grow before Go collects garbage; Go's own default is 100.

See docs/reference/benchmarks/memory.md.
"""


def dns_address(service_cidr: str) -> str:
    """Return the address at which kubelets expect the cluster's DNS: the tenth Service address, by kubeadm's rule."""
    return str(ip_network(service_cidr)[10])


def serving_hosts(
    address: Address, *, service_cidr: str = DEFAULT_SERVICE_CIDR, published: str | None = None
) -> tuple[str, ...]:
    """Return the hosts of the API server's certificate. `published` is the API server's name at the gateway."""
    names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
    external = (address.external.host,) if address.external is not None else ()
    # Kubernetes assigns the first address to the Service default/kubernetes.
    first = str(ip_network(service_cidr)[1])
    public = (published,) if published is not None else ()
    return (address.host, *external, *public, *names, "kubernetes.default.svc.cluster.local", first)


def server_url(address: Address) -> str:
    """Return the URL under which other components reach the API server."""
    return _url(address.host, address.ports[_HTTPS])


def external_url(address: Address) -> str:
    """Return the URL under which clients outside of the cluster reach the API server."""
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
    settings: ApiServerSettings | None = None,
    service_cidr: str = DEFAULT_SERVICE_CIDR,
    scheduling: Scheduling | None = None,
    egress: Egress | None = None,
    published_url: str | None = None,
    ready_at: str = READY,
) -> Component:
    """Describe the kube-apiserver of a control plane. Equal arguments give an equal description.

    `etcd_prefix` is the prefix of its keys, without a slash at the end. On a shared etcd (`etcd_shared`), the API
    server neither compacts etcd nor polls its size: both calls need permissions beyond the prefix. `version` is the
    version of the `Component`. `settings` are the settings of the class; `service_cidr` overrides their Service
    network. `egress` lists the destinations besides etcd; None allows every destination. `published_url` is the URL of
    its host name at the gateway, without a path: its discovery document names the keys of tokens there. The component
    is ready once the path `ready_at` answers 200.
    """
    port = address.ports[_HTTPS]
    settings = settings or ApiServerSettings()
    audit = settings.audit_policy
    arguments = _arguments(
        address,
        etcd_endpoints=etcd.endpoints,
        etcd_prefix=etcd_prefix,
        etcd_shared=etcd_shared,
        service_cidr=service_cidr,
        settings=settings,
        egress=egress,
        published_url=published_url,
    )
    return Component(
        name=name,
        program=API_SERVER,
        version=version,
        args=arguments,
        files={
            # kube-apiserver re-reads its serving certificate, its client CAs and its etcd client certificate.
            **_pair("server", certificates.api_server),
            **_pair("etcd-client", certificates.etcd_client),
            **_pair("front-proxy-client", certificates.front_proxy),
            "client-ca.crt": File(authorities.client_trust, reloaded=True),
            "serving-ca.crt": File(authorities.serving_trust, reloaded=True),
            "front-proxy-ca.crt": File(authorities.front_proxy_trust, reloaded=True),
            "etcd-ca.crt": File(etcd.ca),
            # kube-apiserver reads the keys of ServiceAccount tokens only at its start: a change restarts it.
            "sa.key": File(authorities.service_account_key),
            "sa.pub": File(authorities.service_account_trust),
            "authentication.yaml": File(authentication_configuration(settings.oidc), reloaded=True),
            "encryption.yaml": File(
                encryption_configuration(settings.encrypted_resources, key=authorities.encryption_key), reloaded=True
            ),
            **({"audit.yaml": File(audit_configuration(audit))} if audit is not None else {}),
            **(egress.files() if egress is not None else {}),
        },
        env={"GOGC": str(_GOGC[settings.memory])},
        ports=(Port(number=port, name=_HTTPS),),
        readiness=Probe(port=_HTTPS, path=ready_at, ca="serving-ca.crt", interval_seconds=_PROBE_SECONDS),
        resources=resources,
        scheduling=scheduling,
        # Without etcd, an API server is unready, and a restart would repair no fault of etcd.
        liveness_path="/livez?exclude=etcd",
        reaches=(
            *(
                Reach(port=port, component=component, namespace=etcd.namespace)
                for port in sorted({urlsplit(endpoint).port or 443 for endpoint in etcd.endpoints})
                for component in etcd.components or (None,)
            ),
            *(egress.reaches() if egress is not None else ()),
        ),
        grace_seconds=10.0,
        # A mistake in a class must not stop working API servers. Data and keys must be equal, however: with a former
        # key, an API server would accept tokens that a rotation has revoked.
        fallback=Fallback(
            arguments=tuple(
                argument for argument in arguments if argument.startswith(("--etcd-servers=", "--etcd-prefix="))
            ),
            files=("sa.key", "sa.pub", "etcd-ca.crt"),
        ),
        # `--help` parses the flags that follow, and exits. It goes first, because a flag without a value would take it.
        check=("--help",),
    )


def bootstrap_arguments(settings: ApiServerSettings, *, service_cidr: str) -> Sequence[str]:
    """Return the flags that determine which data an API server on the shared etcd writes at its first start.

    The flags are of an API server that has no address and no keys yet.
    """
    return _arguments(
        Address("none", {_HTTPS: 0}),
        etcd_endpoints=(),
        etcd_prefix="",
        etcd_shared=True,
        service_cidr=service_cidr,
        settings=settings,
        egress=Egress(),
        published_url=None,
    )


def _arguments(
    address: Address,
    *,
    etcd_endpoints: Sequence[str],
    etcd_prefix: str,
    etcd_shared: bool,
    service_cidr: str,
    settings: ApiServerSettings,
    egress: Egress | None,
    published_url: str | None,
) -> tuple[str, ...]:
    return (
        f"--bind-address={address.listen}",
        # If the host is a name, the API server detects its own address. Below, it is kept from publishing the address.
        *(() if address.bind else (f"--advertise-address={address.host}",)),
        f"--secure-port={address.ports[_HTTPS]}",
        # Pods that look up default/kubernetes need a routable address, and loopback is none.
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={service_cidr}",
        f"--etcd-servers={','.join(etcd_endpoints)}",
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
        f"--service-account-issuer={SERVICE_ACCOUNT_ISSUER}",
        f"--service-account-key-file={FILES}/sa.pub",
        f"--service-account-signing-key-file={FILES}/sa.key",
        *_keys_url(published_url, extra_args=settings.extra_args),
        f"--encryption-provider-config={FILES}/encryption.yaml",
        "--encryption-provider-config-automatic-reload=true",
        "--authorization-mode=Node,RBAC",
        *(egress.arguments(settings.extra_args) if egress is not None else ()),
        # Limits the writes of a node to its Node, and to pods that are bound to it and have no ServiceAccount.
        "--enable-admission-plugins=NodeRestriction",
        "--profiling=false",
        # By default a stop waits up to a minute for open watches.
        "--shutdown-watch-termination-grace-period=2s",
        *(
            (f"--audit-policy-file={FILES}/audit.yaml", "--audit-log-path=-")
            if settings.audit_policy is not None
            else ()
        ),
        *canonical_flags(settings.extra_args),
    )


def _keys_url(published_url: str | None, *, extra_args: Sequence[str]) -> tuple[str, ...]:
    """Return the flag with the URL of the keys that verify tokens of ServiceAccounts, for a host name at the gateway.

    By default, the discovery document names the API server's own address, which clients may not reach. The gateway
    passes the TLS of a host name through, so it cannot change the document as for a path. Flags of the class that
    decide about the URL have priority.
    """
    if published_url is None or any(flag.partition("=")[0] in _KEYS_URL_FLAGS for flag in extra_args):
        return ()
    return (f"--service-account-jwks-uri={published_url}/openid/v1/jwks",)


def _pair(name: str, pair: KeyPair) -> dict[str, File]:
    return {
        f"{name}.crt": File(pair.certificate, reloaded=True),
        f"{name}.key": File(pair.key, reloaded=True),
    }
