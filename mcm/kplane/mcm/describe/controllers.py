"""The effective configuration of an instance: what a cluster's description comes to, as a component."""

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
"""Of one instance; it has some 30 of its own, and a connection for each client that asks it for something."""
READERS: Final = "readers-ca.crt"
"""File with the authority of those that may read the metrics of an instance."""
SERVING: Final = ("serving.crt", "serving.key")
"""Files with the serving certificate of an instance, and its key."""
ENVIRONMENT: Final = {
    # Trade a little CPU for memory, which each cluster costs. Measured (docs/reference/benchmarks/density.md): 20 takes
    # 1 MiB less than 30 at rest, and a tenth more processor time when it is busy. 10 takes a third more.
    "GOGC": "20",
    "GOMAXPROCS": "1",
    # Profiling is off, so Go need not keep up to 1 MiB of samples for heap profiles.
    "GODEBUG": "memprofilerate=0",
}
GRACE_SECONDS: Final = 10.0


def component_name(registration: str, *, prefix: str = "kcm") -> str:
    """Name of the instance of a registration: a DNS label, another one for each registration and each prefix.

    Prefixes have three letters.
    """
    if len(registration) <= _PLAIN_LENGTH and _PLAIN.fullmatch(registration) and "--" not in registration:
        return f"{prefix}-{registration}"
    stem = re.sub(r"[^a-z0-9]+", "-", registration.lower())[:_STEM_LENGTH].strip("-") or "x"
    # Two hyphens mark a digest: no name of the first kind has them.
    return f"{prefix}-{stem}--{hashlib.sha256(registration.encode()).hexdigest()[:_DIGEST_LENGTH]}"


def _controllers_wanted(cluster: Cluster, *, flags: Flags) -> ControllersProfile | tuple[str, ...]:
    """Return which controllers run: by the registration or its class, by mcm's `--controllers`, or those of Nodeless.

    Raises ConfigurationError for a profile that is not known here.
    """
    if explicit := controllers_named(cluster):
        return explicit
    profile = cluster.attributes.get(PROFILE_ATTRIBUTE)
    if not profile:
        return flags.controllers or ControllersProfile.NODELESS
    try:
        return ControllersProfile(profile)
    except ValueError:
        known = ", ".join(ControllersProfile)
        raise ConfigurationError(
            f"registration {cluster.name}: unknown controllers.profile {profile!r}; use one of {known}"
        ) from None


def controllers_name(cluster: Cluster, *, flags: Flags) -> str:
    """Name them: a profile, as it was asked for, also where there is none of that name, or Explicit for a list."""
    if controllers_named(cluster):
        return _EXPLICIT
    otherwise = _EXPLICIT if flags.controllers else ControllersProfile.NODELESS
    return cluster.attributes.get(PROFILE_ATTRIBUTE) or otherwise


def controllers_named(cluster: Cluster) -> tuple[str, ...]:
    """List the controllers that the registration or its class names one by one; empty if it does not."""
    return tuple(name for name in cluster.attributes.get(CONTROLLERS_ATTRIBUTE, "").split(",") if name)


_EXPLICIT: Final = "Explicit"

_DEFAULTS: Final = (
    "--use-service-account-credentials=false",
    "--profiling=false",
    # Some controllers make this directory; the default is one of the machine's.
    f"--flex-volume-plugin-dir={DATA}/flexvolumes",
)
"""What an instance is told where the flags of mcm's own command line do not say it."""


def configure(
    cluster: Cluster,
    *,
    address: Address,
    serving: ServingCertificate,
    flags: Flags,
    program: str = PROGRAM,
    readers: bytes | None = None,
) -> Component:
    """Describe the instance of a cluster. `program` is as `Component.program` has it.

    `readers` is the authority of those that may read its metrics, in PEM.

    Where two descriptions differ only in files that kube-controller-manager reads again by itself, the process goes on.
    Raises ConfigurationError if the profile is not known or the kubeconfig has no credentials.
    """
    wanted, keys = _controllers_wanted(cluster, flags=flags), keys_of(cluster)
    arguments = (
        *flags.over(_DEFAULTS),
        f"--controllers={','.join(controllers(wanted, keys=keys))}",
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
    """Describe an instance of any program by its own arguments and files: connection, port and life are the same.

    It reads its own files and those of the machine. `reads` are others.
    """
    return Component(
        name=name,
        program=program,
        args=(
            *arguments,
            # The last flag of a name counts, so these win over flags of the user.
            f"--kubeconfig={FILES}/kubeconfig",
            # With this flag it asks the API server for something before it serves /healthz. Without the flag it claims
            # to be healthy while it waits for an API server: 10 seconds if that refuses it, for ever if it is silent.
            f"--authentication-kubeconfig={FILES}/kubeconfig",
            f"--bind-address={address.host}",
            f"--secure-port={address.ports[PORT]}",
            f"--tls-cert-file={FILES}/serving.crt",
            f"--tls-private-key-file={FILES}/serving.key",
            # mcm holds the Lease of that election for it.
            "--leader-elect=false",
            # In place of the CAs that the tenant's API server names, which then open nothing here.
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
    """Who asks for profiles finds all of them."""
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
    """Take what controllers work with out of the Secret; half a signing CA is none."""
    keys = {name: cluster.credentials[name] for name in _KEY_FLAGS if cluster.credentials.get(name)}
    if not {"signing-ca.crt", "signing-ca.key"} <= keys.keys():
        keys = {name: content for name, content in keys.items() if not name.startswith("signing-ca.")}
    if "ca.crt" not in keys and cluster.config.ca_data is not None:
        keys["ca.crt"] = cluster.config.ca_data
    return keys


def connection(cluster: Cluster) -> dict[str, File]:
    """Make the kubeconfig and the files it refers to: credentials in files are read again, inline ones never."""
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
        # One file for both, because two cannot be replaced in one step.
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
