"""Describes the programs of a management cluster that controlplane-operator does not describe."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kplane.binaries.interpreter import inheriting_command
from kplane.embedded.python_path import python_path
from kplane.pki.primitives import KeyPair
from kplane.workloads import FILES, Address, Component, File, Lifetime, Port, Probe

__all__ = [
    "API_SERVER",
    "AWAKE_INOTIFY_INSTANCES",
    "CONTROLLER_MANAGER",
    "CONTROLLER_MANAGER_PORTS",
    "ENVOY_INOTIFY_INSTANCES",
    "ETCD",
    "GATEWAY",
    "GATEWAY_PORTS",
    "MANAGEMENT",
    "MCM",
    "OPERATOR",
    "OPERATOR_PORTS",
    "START_INOTIFY_INSTANCES",
    "TENANTS_ETCD",
    "bound",
    "controller_manager",
    "python",
    "python_program",
]

ETCD: Final = "etcd"
TENANTS_ETCD: Final = "tenants-etcd"
API_SERVER: Final = "kube-apiserver"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
OPERATOR: Final = "controlplane-operator"
MCM: Final = "mcm"
GATEWAY: Final = "kplane-gateway"

_HTTPS: Final = "https"
_HTTP: Final = "http"
CONTROLLER_MANAGER_PORTS: Final = (_HTTPS,)
OPERATOR_PORTS: Final = (_HTTP,)
GATEWAY_PORTS: Final = (_HTTP, _HTTPS)

ENVOY_INOTIFY_INSTANCES: Final = 5
"""Envoy ends by SIGABRT without them. All other programs continue, and do not read their files again."""
_API_SERVER_INOTIFY_INSTANCES: Final = 7
"""Instances of an API server: 2 for its own certificate and key, 1 for `authentication.yaml`.

`client-ca.crt` and `front-proxy-ca.crt` need 2 each. All flags for these files are necessary.
"""
AWAKE_INOTIFY_INSTANCES: Final = _API_SERVER_INOTIFY_INSTANCES + 6
"""Instances of an awake control plane.

kube-controller-manager needs 1 for its certificate, 1 for the CAs of its callers, and 1 for each of the four signers of
certificates. Only profile Core has no signers.
"""
START_INOTIFY_INSTANCES: Final = _API_SERVER_INOTIFY_INSTANCES + 1 + ENVOY_INOTIFY_INSTANCES
"""Instances of a management cluster without control planes."""

_CONTROLLERS: Final = (
    "namespace-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
)
"""The controllers of a cluster without workloads: deletion of namespaces, ServiceAccounts, garbage collection."""


MANAGEMENT: Final = {"GOGC": "200"}
"""Environment of the management API server.

It serves all control planes, so this setting saves processor time instead of memory. API servers of control planes
have GOGC=50, which would add a third to the time of a status update. See docs/reference/benchmarks/management-api.md.
"""


def bound(
    component: Component, *, args: Sequence[str] = (), env: Mapping[str, str] = MappingProxyType({})
) -> Component:
    """Return the component with more arguments and variables, and with a lifetime bound to this process."""
    return dataclasses.replace(
        component, args=(*component.args, *args), env={**component.env, **env}, lifetime=Lifetime.BOUND
    )


def controller_manager(
    *, address: Address, kubeconfig: bytes, ca: bytes, server: KeyPair, service_account_key: bytes
) -> Component:
    """Describe a kube-controller-manager that runs the controllers of `_CONTROLLERS`."""
    port = address.ports[_HTTPS]
    return Component(
        name=CONTROLLER_MANAGER,
        program="kube-controller-manager",
        args=(
            f"--kubeconfig={FILES}/kubeconfig",
            f"--bind-address={address.host}",
            f"--secure-port={port}",
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
            "server.crt": File(server.certificate),
            "server.key": File(server.key),
        },
        ports=(Port(number=port, name=_HTTPS),),
        readiness=Probe(port=_HTTPS, path="/healthz", ca="ca.crt"),
        lifetime=Lifetime.BOUND,
        grace_seconds=5.0,
    )


def python_program(directory: Path, *, module: str) -> Path:
    """Write a program that runs a module as `python -m` does, and return its path."""
    directory.mkdir(mode=0o700, exist_ok=True)
    program = directory / module.split(".")[-2]
    lines = (
        f"#!{sys.executable} -EP",
        "import runpy, sys",
        f"sys.path[:0] = {python_path().split(os.pathsep)!r}",
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)",
    )
    program.write_text("".join(f"{line}\n" for line in lines))
    program.chmod(0o700)
    return program


def python(name: str, *, module: str, args: Sequence[str], address: Address, kubeconfig: bytes) -> Component:
    """Describe an operator or the gateway, with this interpreter, these packages and its own kubeconfig."""
    port = address.ports[_HTTP]
    interpreter, *options = inheriting_command(module)
    return Component(
        name=name,
        program=interpreter,
        args=(*options, f"--kubeconfig={FILES}/kubeconfig", f"--listen={address.host}:{port}", *args),
        files={"kubeconfig": File(kubeconfig)},
        env={"PYTHONPATH": python_path()},
        ports=(Port(number=port, name=_HTTP),),
        readiness=Probe(port=_HTTP, path="/readyz"),
        lifetime=Lifetime.BOUND,
        grace_seconds=20.0,
    )
