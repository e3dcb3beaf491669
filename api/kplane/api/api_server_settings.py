"""Settings of a class for the API servers of its control planes."""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field, StringConstraints

from kplane.api.audit import AuditPolicy
from kplane.api.extensions import ATOMIC_LIST, Extension, Rule, list_map, rules
from kplane.api.oidc import OidcIssuer
from kplane.api.resource import ApiModel

__all__ = ["DEFAULT_SERVICE_CIDR", "MANAGED_FLAGS", "ApiServerMemory", "ApiServerSettings"]

DEFAULT_SERVICE_CIDR: Final = "10.96.0.0/16"
"""The network of Services if the class sets none."""

MANAGED_FLAGS: Final = (
    "advertise-address",
    "anonymous-auth",
    "audit-log-path",
    "audit-policy-file",
    "authentication-config",
    "authorization-config",
    "authorization-mode",
    "bind-address",
    "cert-dir",
    "client-ca-file",
    "disable-admission-plugins",
    "egress-selector-config-file",
    "enable-bootstrap-token-auth",
    "encryption-provider-config",
    "encryption-provider-config-automatic-reload",
    "endpoint-reconciler-type",
    "etcd-cafile",
    "etcd-certfile",
    "etcd-compaction-interval",
    "etcd-db-metric-poll-interval",
    "etcd-keyfile",
    "etcd-prefix",
    "etcd-servers",
    "etcd-servers-overrides",
    "kubelet-client-certificate",
    "kubelet-client-key",
    "oidc-ca-file",
    "oidc-client-id",
    "oidc-groups-claim",
    "oidc-groups-prefix",
    "oidc-issuer-url",
    "oidc-required-claim",
    "oidc-signing-algs",
    "oidc-username-claim",
    "oidc-username-prefix",
    "profiling",
    "proxy-client-cert-file",
    "proxy-client-key-file",
    "requestheader-allowed-names",
    "requestheader-client-ca-file",
    "requestheader-extra-headers-prefix",
    "requestheader-group-headers",
    "requestheader-uid-headers",
    "requestheader-username-headers",
    "secure-port",
    "service-account-issuer",
    "service-account-key-file",
    "service-account-signing-endpoint",
    "service-account-signing-key-file",
    "service-cluster-ip-range",
    "shutdown-watch-termination-grace-period",
    "storage-backend",
    "tls-cert-file",
    "tls-private-key-file",
    "tls-sni-cert-key",
    "token-auth-file",
)
"""Flags of kube-apiserver that kplane sets, or that would override a setting of kplane."""


_FLAG: Final = "^--[a-z0-9]+(-[a-z0-9]+)*(=.*)?$"
_MANAGED_SENTENCE: Final = (
    "spec.apiServer.extraArgs must not set a flag that kplane sets itself, that is unsafe here, or that another field"
    " of the class is for: remove it"
)


def _unmanaged(arguments: list[str]) -> list[str]:
    """Validate arguments by the rule of `extraArgs`, for objects that no API server has validated."""
    for argument in arguments:
        if argument.removeprefix("--").partition("=")[0] in MANAGED_FLAGS:
            raise ValueError(f"{argument}: {_MANAGED_SENTENCE}")
    return arguments


_FLAGS_IN_CEL: Final = ", ".join(f"'--{flag}'" for flag in MANAGED_FLAGS)

_NETWORK: Final = "^([0-9]{1,3}[.]){3}[0-9]{1,3}/(1[2-9]|2[0-8])$|^[0-9a-f:]{2,39}/(10[89]|11[0-9]|12[0-4])$"
"""Pattern of a network. kube-apiserver accepts at most 20 bits of host addresses."""


def _network(text: str) -> str:
    """Validate a network beyond its pattern: the numbers form an address, and the host bits are zero."""
    if str(ipaddress.ip_network(text)) != text:
        raise ValueError(f"{text!r} is not written as {ipaddress.ip_network(text)}")
    return text


_ResourceName = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][-a-z0-9.]+)?$")
]


class ApiServerMemory(StrEnum):
    """Preference of an API server for less memory or for less processor time."""

    SMALL = "Small"
    BALANCED = "Balanced"
    LARGE = "Large"


class ApiServerSettings(ApiModel):
    """Settings of the API servers of control planes, besides version and resources."""

    extra_args: Annotated[
        list[Annotated[str, StringConstraints(max_length=1024, pattern=_FLAG)]],
        Field(max_length=32),
        AfterValidator(_unmanaged),
        ATOMIC_LIST,
        Extension(
            rules(
                Rule(
                    rule=f"self.all(arg, !(arg.split('=')[0] in [{_FLAGS_IN_CEL}]))",
                    message=_MANAGED_SENTENCE,
                )
            )
        ),
    ] = Field(default_factory=list)
    """Additional flags of kube-apiserver, such as --max-requests-inflight=200. Flags that kplane sets, and flags that
    have a field here, are refused. A change restarts API servers. kube-apiserver does not start with an unknown flag or
    an invalid value. A former kube-apiserver that works keeps running in that case, and condition UpToDate of the
    control plane gives the cause.
    """
    service_cidr: (
        Annotated[
            str,
            StringConstraints(max_length=43, pattern=_NETWORK),
            AfterValidator(_network),
        ]
        | None
    ) = Field(default=None, alias="serviceCIDR")
    """The network from which Services get their addresses: IPv4 with a prefix from /12 to /28, or IPv6 with a prefix
    from /108 to /124. The default is 10.96.0.0/16. The network applies to new control planes. An existing control plane
    keeps the network in its status.
    """
    oidc: Annotated[list[OidcIssuer], Field(max_length=8), list_map("issuerURL")] = Field(default_factory=list)
    """Issuers of tokens for users, by OpenID Connect. A change takes effect within a minute, without a restart. The API
    server reads the issuer's keys, so `allowedDestinations` of the class must contain the issuer's address.
    """
    audit_policy: AuditPolicy | None = None
    """The audit policy. The API server writes the audit log to its own log, as lines of JSON. There is no audit log if
    the policy is absent. A change restarts API servers.
    """
    encrypted_resources: Annotated[list[_ResourceName], Field(max_length=64), ATOMIC_LIST] = Field(default_factory=list)
    """Resources whose objects are encrypted in etcd, such as secrets, configmaps or widgets.example.com. The key is
    created with the control plane, and stored beside its CAs. A change takes effect within two minutes, for objects
    written from then on. Objects that were encrypted before stay readable.
    """
    memory: ApiServerMemory = ApiServerMemory.BALANCED
    """The trade of memory for processor time: how often Go's garbage collector runs. An idle API server uses about 125
    MiB with Small, 150 MiB with Balanced, and 190 MiB with Large. With Small an API server wakes more slowly, with
    Large faster. This is no memory limit, see `resources`. A change restarts API servers.
    """
