"""Component of an instance: its command line, files and environment, from the description of a cluster."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from kplane.api import ControllersProfile
from kplane.mcm.describe.certificate import ServingCertificate
from kplane.mcm.describe.flags import Flags
from kplane.mcm.describe.profiles import controllers
from kplane.mcm.errors import ConfigurationError
from kplane.provider import Cluster
from kplane.provider.providers.kplane import CONTROLLERS_ATTRIBUTE, PROFILE_ATTRIBUTE
from kplane.workloads import DATA, FILES, Address, Component, File, Lifetime, Port, Probe

__all__ = [
    "ENVIRONMENT",
    "OPEN_FILES",
    "PORT",
    "PROGRAM",
    "READERS",
    "SERVING",
    "component_name",
    "configure",
    "controllers_name",
    "controllers_named",
    "instance_component",
    "keys_of",
]

PROGRAM: Final = "kube-controller-manager"
PORT: Final = "https"

_PLAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PLAIN_LENGTH: Final = 55
_STEM_LENGTH: Final = 40
_DIGEST_LENGTH: Final = 16
_CLIENT: Final = "client.pem"
_TOKEN: Final = "token"  # noqa: S105 - a file's name
_SERVER_CA: Final = "server-ca.crt"
OPEN_FILES: Final = 4096
"""Limit of open files of an instance: about 30 files of its own, and a connection for each client."""
READERS: Final = "readers-ca.crt"
"""File with the CA of the clients that may read the metrics of an instance."""
SERVING: Final = ("serving.crt", "serving.key")
"""Files with the serving certificate of an instance, and its key."""
ENVIRONMENT: Final = {
    # Trade a little CPU time for memory, which every cluster costs. Measured (docs/reference/benchmarks/density.md): 20
    # takes 1 MiB less than 30 at rest, and a tenth more CPU time under load. A GOGC of 10 takes a third more.
    "GOGC": "20",
    "GOMAXPROCS": "1",
    # Profiling is off, so Go need not keep up to 1 MiB of samples for heap profiles.
    "GODEBUG": "memprofilerate=0",
}
GRACE_SECONDS: Final = 10.0


def component_name(registration: str, *, prefix: str = "kcm") -> str:
    """Return the name of a registration's instance: a DNS label, unique for each registration and prefix.

    A prefix has three letters.
    """
    if len(registration) <= _PLAIN_LENGTH and _PLAIN.fullmatch(registration) and "--" not in registration:
        return f"{prefix}-{registration}"
    stem = re.sub(r"[^a-z0-9]+", "-", registration.lower())[:_STEM_LENGTH].strip("-") or "x"
    # Two hyphens mark a digest: plain names never have two hyphens.
    return f"{prefix}-{stem}--{hashlib.sha256(registration.encode()).hexdigest()[:_DIGEST_LENGTH]}"


def _controllers_wanted(cluster: Cluster, *, flags: Flags) -> ControllersProfile | tuple[str, ...]:
    """Return the profile or list of controllers, from the registration, its class, or mcm's `--controllers`.

    The default is the profile Nodeless. Raises ConfigurationError for an unknown profile.
    """
    if explicit := controllers_named(cluster):
        return explicit
    profile = cluster.attributes.get(PROFILE_ATTRIBUTE)
    if not profile:
        return flags.controllers or ControllersProfile.NODELESS
    try:
        return ControllersProfile(profile)
    except ValueError:
        profiles = ", ".join(ControllersProfile)
        raise ConfigurationError(
            f"registration {cluster.name}: unknown controllers.profile {profile!r}; use one of {profiles}"
        ) from None


def controllers_name(cluster: Cluster, *, flags: Flags) -> str:
    """Return the name of the profile as given, even if unknown, or Explicit for a list of controllers."""
    if controllers_named(cluster):
        return _EXPLICIT
    default = _EXPLICIT if flags.controllers else ControllersProfile.NODELESS
    return cluster.attributes.get(PROFILE_ATTRIBUTE) or default


def controllers_named(cluster: Cluster) -> tuple[str, ...]:
    """Return the controllers that the registration or its class lists by name; empty if there is no list."""
    return tuple(name for name in cluster.attributes.get(CONTROLLERS_ATTRIBUTE, "").split(",") if name)


_EXPLICIT: Final = "Explicit"

_DEFAULTS: Final = (
    "--use-service-account-credentials=false",
    "--profiling=false",
    # Some controllers create this directory. The default path is a directory of the host.
    f"--flex-volume-plugin-dir={DATA}/flexvolumes",
)
"""Flags of an instance that flags of mcm's own command line override."""


def configure(
    cluster: Cluster,
    *,
    address: Address,
    serving: ServingCertificate,
    flags: Flags,
    program: str = PROGRAM,
    readers: bytes | None = None,
) -> Component:
    """Return the component of a cluster's kube-controller-manager.

    `program` is a name or a path, as in `Component.program`. `readers` is the CA, in PEM, of the clients that may read
    the metrics. The process continues if a new description differs only in files that kube-controller-manager reloads.
    Raises ConfigurationError if the profile is unknown or the kubeconfig has no credentials.
    """
    selection, keys = _controllers_wanted(cluster, flags=flags), keys_of(cluster)
    arguments = (
        *flags.over(_DEFAULTS),
        f"--controllers={','.join(controllers(selection, keys=keys))}",
        *(f"{flag}={FILES}/{name}" for name, flag in _KEY_FLAGS.items() if name in keys),
    )
    return instance_component(
        cluster,
        name=component_name(cluster.name),
        program=program,
        arguments=arguments,
        files={name: File(content, reloaded=name.startswith("signing-ca.")) for name, content in keys.items()},
        environment=_environment(arguments),
        address=address,
        serving=serving,
        readers=readers,
        data=True,
        reads=flags.paths(),
    )


def instance_component(
    cluster: Cluster,
    *,
    name: str,
    program: str,
    arguments: Sequence[str],
    address: Address,
    serving: ServingCertificate,
    readers: bytes | None,
    files: Mapping[str, File] = MappingProxyType({}),
    environment: Mapping[str, str] = ENVIRONMENT,
    data: bool = False,
    reads: tuple[str, ...] = (),
) -> Component:
    """Return the component of a program with these arguments and files.

    All programs have the same flags for connection and port, and the same lifetime. The sandbox lets the process read
    its own files and the files of the operating system; `reads` are further paths. Raises ConfigurationError if the
    kubeconfig has no credentials.
    """
    return Component(
        name=name,
        program=program,
        args=(
            *arguments,
            # The last flag of a name counts, so these flags override flags of the user.
            f"--kubeconfig={FILES}/kubeconfig",
            # With this flag, the program sends a request to the API server before it serves /healthz. Without the flag,
            # /healthz is ok while the program waits for an API server. The program waits for 10 seconds if connections
            # are refused, and for ever if the server is silent.
            f"--authentication-kubeconfig={FILES}/kubeconfig",
            f"--bind-address={address.host}",
            f"--secure-port={address.ports[PORT]}",
            f"--tls-cert-file={FILES}/serving.crt",
            f"--tls-private-key-file={FILES}/serving.key",
            # mcm holds the Lease of that election on behalf of the instance.
            "--leader-elect=false",
            # Replaces the client CAs that the tenant's API server publishes, so certificates of these CAs are refused.
            *((f"--client-ca-file={FILES}/{READERS}",) if readers is not None else ()),
        ),
        files={
            **connection(cluster),
            **files,
            "serving.crt": File(serving.certificate),
            "serving.key": File(serving.key),
            **({READERS: File(readers)} if readers is not None else {}),
        },
        env=environment,
        ports=(Port(number=address.ports[PORT], name=PORT),),
        data=data,
        readiness=Probe(port=PORT, path="/healthz", ca="serving.crt"),
        lifetime=Lifetime.BOUND,
        open_files=OPEN_FILES,
        only_logs=True,
        reads=reads,
        grace_seconds=GRACE_SECONDS,
    )


def _environment(arguments: Sequence[str]) -> Mapping[str, str]:
    """Return the environment; without GODEBUG if profiling is on, so that heap profiles are complete."""
    if "--profiling=false" in arguments:
        return ENVIRONMENT
    return {name: value for name, value in ENVIRONMENT.items() if name != "GODEBUG"}


_KEY_FLAGS: Final = {
    "ca.crt": "--root-ca-file",
    "sa.key": "--service-account-private-key-file",
    "signing-ca.crt": "--cluster-signing-cert-file",
    "signing-ca.key": "--cluster-signing-key-file",
}


def keys_of(cluster: Cluster) -> dict[str, bytes]:
    """Return the keys of the Secret that controllers use, by file name, without an incomplete signing CA.

    `ca.crt` defaults to the CA of the kubeconfig.
    """
    keys = {name: cluster.credentials[name] for name in _KEY_FLAGS if cluster.credentials.get(name)}
    if not {"signing-ca.crt", "signing-ca.key"} <= keys.keys():
        keys = {name: content for name, content in keys.items() if not name.startswith("signing-ca.")}
    if "ca.crt" not in keys and cluster.config.ca_data is not None:
        keys["ca.crt"] = cluster.config.ca_data
    return keys


def connection(cluster: Cluster) -> dict[str, File]:
    """Return the kubeconfig and its files. Programs reload credentials in files, and never reload inline credentials.

    Raises ConfigurationError if the kubeconfig has no credentials.
    """
    config = cluster.config
    server: dict[str, Any] = {"server": config.server}
    user: dict[str, Any] = {}
    files: dict[str, File] = {}
    if config.ca_data is not None:
        server["certificate-authority"] = _SERVER_CA
        files[_SERVER_CA] = File(config.ca_data)
    if config.tls_server_name is not None:
        server["tls-server-name"] = config.tls_server_name
    if config.proxy is not None:
        server["proxy-url"] = config.proxy
    if config.client_certificate is not None and config.client_key is not None:
        # Certificate and key share a file, because two files cannot be replaced atomically.
        user["client-certificate"] = user["client-key"] = _CLIENT
        files[_CLIENT] = File(config.client_certificate.rstrip() + b"\n" + config.client_key, reloaded=True)
    if config.token is not None:
        user["tokenFile"] = _TOKEN
        files[_TOKEN] = File(config.token.encode(), reloaded=True)
    if not user:
        raise ConfigurationError(
            f"registration {cluster.name}: the kubeconfig has no credentials; add a token or a client certificate"
        )
    if config.impersonation is not None:
        user |= config.impersonation.to_kubeconfig()
    return {**files, "kubeconfig": File(_kubeconfig(server, user=user))}


def _kubeconfig(server: Mapping[str, Any], *, user: Mapping[str, Any]) -> bytes:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default", "cluster": server}],
        "users": [{"name": "default", "user": user}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
        "current-context": "default",
    }
    return json.dumps(document, indent=1).encode()  # JSON is YAML
