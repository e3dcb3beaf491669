"""Circumstances that sections of documents expect, as context managers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from e2e.certificates import make_certificate
from e2e.installation import NAMESPACE, chart_values, images
from e2e.kubectl import Kubectl
from e2e.waiting import eventually

__all__ = ["etcd_of_their_own", "lost_credentials", "lost_namespace", "shared_files"]

_FILES: Final = "shared-files"
_DATABASES: Final = "databases"
_ANYBODY_MAY_WRITE: Final = "chmod 0777 /files"


@contextlib.contextmanager
def shared_files(kubectl: Kubectl, _: Path) -> Iterator[None]:
    """Provide StorageClass `shared-files` with a volume that all pods can mount: a directory on the only node."""
    assert len(kubectl.names("nodes")) == 1, "failed to share a node's directory: the cluster has several nodes"
    labels = {"app": _FILES}
    host_path = {"path": f"/var/lib/{_FILES}", "type": "DirectoryOrCreate"}
    volume = {
        "storageClassName": _FILES,
        "capacity": {"storage": "20Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": host_path,
    }
    storage_class = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    container = {
        "name": "files",
        "image": images()[1],
        "command": ["sh", "-c", _ANYBODY_MAY_WRITE],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "files", "mountPath": "/files"}],
    }
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": [{"name": "files", "hostPath": host_path}]}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": _FILES, "labels": labels},
            "spec": volume,
        },
        {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": _FILES}, **storage_class},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _FILES, "namespace": "default"}, "spec": pod},
    )
    try:
        succeeded = "--for=jsonpath={.status.phase}=Succeeded"
        kubectl("wait", f"pod/{_FILES}", "-n", "default", succeeded, "--timeout=120s")
        yield
    finally:
        kubectl("delete", f"pod/{_FILES}", "-n", "default", "--timeout=120s")
        kubectl("delete", f"storageclass/{_FILES}", f"persistentvolume/{_FILES}", "--timeout=120s")


@contextlib.contextmanager
def etcd_of_their_own(kubectl: Kubectl, directory: Path) -> Iterator[None]:
    """Run an etcd as docs/how-to/external-etcd.md requires: Service `etcd` in namespace `databases`."""
    _make_certificates(directory, host=f"etcd.{_DATABASES}.svc")
    kubectl("create", "namespace", _DATABASES)
    try:
        kubectl.apply(*_etcd(directory))
        kubectl("wait", "pod/etcd", "-n", _DATABASES, "--for=condition=Ready", "--timeout=120s")
        yield
    finally:
        kubectl("delete", "namespace", _DATABASES, "--timeout=200s", timeout_seconds=210)


@contextlib.contextmanager
def lost_credentials(kubectl: Kubectl, _: Path) -> Iterator[None]:
    """Scale the operator to 0, delete the Secret with the shared etcd's CA, and start the operator again."""
    operator = ("deployment/kplane-operator", "-n", NAMESPACE)
    kubectl("scale", *operator, "--replicas=0")
    pods = ("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator")
    kubectl("wait", *pods, "--for=delete", "--timeout=200s", timeout_seconds=210)
    kubectl("delete", "secret", "kplane-etcd-credentials", "-n", NAMESPACE)
    kubectl("scale", *operator, "--replicas=1")
    logs = ("logs", "deployment/kplane-operator", "-n", NAMESPACE)
    eventually("the operator misses its Secret", lambda: kubectl(*logs), lambda said: "kplane-etcd-credentials" in said)
    yield


@contextlib.contextmanager
def lost_namespace(kubectl: Kubectl, _: Path) -> Iterator[None]:
    """Delete the operators' namespace while control planes exist."""
    kubectl("delete", "namespace", NAMESPACE, "--timeout=200s", timeout_seconds=210)
    yield


def _make_certificates(directory: Path, *, host: str) -> None:
    """Create a CA, a serving certificate for the host, and a client certificate for user root."""
    authority = ["-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"]
    make_certificate(directory, "ca", "-subj", "/CN=my-etcd", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    server = [
        "-addext",
        f"subjectAltName=DNS:{host},DNS:localhost",
        "-addext",
        "extendedKeyUsage=serverAuth,clientAuth",
    ]
    make_certificate(directory, "server", "-subj", f"/CN={host}", *authority, *server)
    make_certificate(directory, "client", "-subj", "/CN=root", *authority, "-addext", "extendedKeyUsage=clientAuth")


def _etcd(directory: Path) -> list[dict[str, Any]]:
    metadata = {"name": "etcd", "namespace": _DATABASES, "labels": {"app": "etcd"}}
    flags = {
        "data-dir": "/data/etcd",
        "listen-client-urls": "https://0.0.0.0:2379",
        "advertise-client-urls": f"https://etcd.{_DATABASES}.svc:2379",
        "cert-file": "/certificates/server.crt",
        "key-file": "/certificates/server.key",
        "client-cert-auth": "true",
        "trusted-ca-file": "/certificates/ca.crt",
    }
    container = {
        "name": "etcd",
        "image": chart_values()["etcd"]["image"],
        "command": ["etcd", *(f"--{name}={value}" for name, value in flags.items())],
        "volumeMounts": [
            {"name": "certificates", "mountPath": "/certificates", "readOnly": True},
            {"name": "data", "mountPath": "/data"},
        ],
        "readinessProbe": {"tcpSocket": {"port": 2379}, "periodSeconds": 1},
    }
    volumes = [{"name": "certificates", "secret": {"secretName": "etcd"}}, {"name": "data", "emptyDir": {}}]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1}
    files = {name: (directory / name).read_text() for name in ("ca.crt", "server.crt", "server.key")}
    ports = [{"port": 2379}]
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": files},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": {"app": "etcd"}, "ports": ports},
        },
    ]
