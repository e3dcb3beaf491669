"""The administrator's view of the management cluster for tests: kplane's objects and their status."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.kubectl import Kubectl, Object
from e2e.tenant import Tenant
from e2e.waiting import eventually

__all__ = ["API_VERSION", "Platform", "condition", "described"]

API_VERSION: Final = "controlplane.kplane.dev/v1alpha1"

_ORDER: Final = ("ControlPlane", "ControlPlaneRegistration", "ControlPlaneEndpoint", "ControlPlaneClass", "Secret")
"""Order of deletion. A class recreates the registrations of its control planes while the control planes exist."""

_DELETION_SECONDS: Final = 240.0


def described(kind: str, name: str, *, annotations: Mapping[str, str] | None = None, **spec: Any) -> Object:
    """Return an object of a kind of kplane, as a manifest."""
    metadata: dict[str, Any] = {"name": name}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def condition(found: Object | None, kind: str = "Ready") -> Object:
    """Return the object's condition of this type; empty if the present generation has no such condition."""
    if found is None:
        return {}
    generation = found["metadata"]["generation"]
    conditions = found.get("status", {}).get("conditions", [])
    current = (entry for entry in conditions if entry.get("observedGeneration", generation) == generation)
    return next((entry for entry in current if entry["type"] == kind), {})


@dataclass(slots=True)
class Platform:
    """Objects of a test in the management cluster. `clean_up` deletes them."""

    kubectl: Kubectl
    prefix: str
    """Prefix of the objects' names."""
    directory: Path
    """Directory of the tenants' kubeconfigs."""
    created: dict[str, list[str]] = field(default_factory=dict)

    def name(self, stem: str) -> str:
        """Return a name that no other test has."""
        return f"{self.prefix}-{stem}"

    def create(self, kind: str, name: str, *, annotations: Mapping[str, str] | None = None, **spec: Any) -> None:
        """Create or update an object."""
        self.created.setdefault(kind, []).append(name)
        self.kubectl.apply(described(kind, name, annotations=annotations, **spec))

    def create_secret(self, name: str, *, allow: str | None = None, **data: str) -> dict[str, str]:
        """Create a Secret and return its reference. `allow` is `endpoint` or `registration`, its label."""
        self.created.setdefault("Secret", []).append(name)
        self._let_operator_read("default")
        reference = {"name": name, "namespace": "default"}
        labels = {f"controlplane.kplane.dev/allow-{allow}": "true"} if allow is not None else {}
        metadata = {**reference, "labels": labels}
        self.kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
        return reference

    def _let_operator_read(self, namespace: str) -> None:
        """Let the operator read the Secrets of a namespace, as the owner of the Secrets does."""
        roles = self.kubectl("get", "clusterroles", "-o=name").split()
        (reader,) = [role.partition("/")[2] for role in roles if role.endswith("-operator-secrets-reader")]
        (subject,) = self.kubectl.get("rolebinding", reader.removesuffix("-reader"), "--namespace=kplane-system")[
            "subjects"
        ]
        self.kubectl.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": reader, "namespace": namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": reader},
                "subjects": [subject],
            }
        )

    def get(self, kind: str, name: str) -> Object:
        """Return an object."""
        return self.kubectl.get(_resource(kind), name)

    def find(self, kind: str, name: str) -> Object | None:
        """Return an object; None if it does not exist."""
        return self.kubectl.find(_resource(kind), name)

    def patch(self, kind: str, name: str, patch: Object) -> None:
        """Apply a merge patch to an object."""
        self.kubectl("patch", _resource(kind), name, "--type=merge", f"--patch={json.dumps(patch)}")

    def delete(self, kind: str, *names: str) -> None:
        """Delete objects, and wait until they are gone."""
        if names:
            timeout = f"--timeout={_DELETION_SECONDS:.0f}s"
            args = ("delete", _resource(kind), *names, "--ignore-not-found", "--wait", timeout)
            self.kubectl(*args, timeout_seconds=_DELETION_SECONDS + 10)

    def becomes_ready(self, kind: str, name: str, *, timeout_seconds: float = 240.0) -> Object:
        """Wait until an object is Ready, and return its status."""
        ready = eventually(
            f"{kind} {name} Ready",
            lambda: self.find(kind, name),
            lambda found: condition(found).get("status") == "True",
            timeout_seconds=timeout_seconds,
        )
        status: Object = ready["status"] if ready is not None else {}
        return status

    def becomes(self, kind: str, name: str, reason: str, *, timeout_seconds: float = 120.0) -> str:
        """Wait until an object is not Ready for this reason, and return the message."""
        current = eventually(
            f"{kind} {name} not Ready because of {reason}",
            lambda: condition(self.find(kind, name)),
            lambda found: found.get("status") == "False" and found["reason"] == reason,
            timeout_seconds=timeout_seconds,
        )
        return str(current["message"])

    def resolves(self, registration: str, *, control_plane: str | None = None, timeout_seconds: float = 60.0) -> Object:
        """Wait until a registration is resolved, and return its status."""
        uid = self.get("ControlPlane", control_plane or registration)["metadata"]["uid"]

        def resolved(found: Object | None) -> bool:
            status = found.get("status", {}) if found is not None else {}
            return condition(found).get("status") == "True" and status["controlPlaneUID"] == uid

        description = f"ControlPlaneRegistration {registration} resolved"
        registered = eventually(
            description,
            lambda: self.find("ControlPlaneRegistration", registration),
            resolved,
            timeout_seconds=timeout_seconds,
        )
        status: Object = registered["status"] if registered is not None else {}
        return status

    def secret(self, reference: Object) -> Mapping[str, bytes]:
        """Return the decoded data of the Secret that a reference names."""
        secret = self.kubectl.get("secret", reference["name"], "-n", reference["namespace"])
        return {key: base64.b64decode(value) for key, value in secret["data"].items()}

    def kubeconfigs(self, name: str) -> Mapping[str, bytes]:
        """Return the decoded data of the Secret that a control plane publishes for its administrators."""
        return self.secret(self.get("ControlPlane", name)["status"]["kubeconfigSecretRef"])

    def tenant(self, name: str) -> Tenant:
        """Open a control plane with the external kubeconfig that it publishes at present."""
        number = sum(1 for _ in self.directory.glob("*.kubeconfig"))
        content = self.kubeconfigs(name)["kubeconfig-external"]
        file = self.private_file(f"{number}-{name}.kubeconfig", content=content)
        return Tenant(name, Kubectl(self.kubectl.program, file))

    def private_file(self, name: str, *, content: bytes) -> Path:
        """Write a file that only this user can read."""
        file = self.directory / name
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
            opened.write(content)
        return file

    def clean_up(self) -> None:
        """Delete the created objects with their data, and wait until they are gone."""
        if self.kubectl.find("customresourcedefinition", "controlplanes.controlplane.kplane.dev") is None:
            return  # kplane was uninstalled together with the objects
        names = self.created.get("ControlPlane", [])
        present = [
            control_plane
            for name in dict.fromkeys(names)
            if (control_plane := self.find("ControlPlane", name)) is not None
        ]
        for control_plane in present:
            self.patch("ControlPlane", control_plane["metadata"]["name"], {"spec": {"deletionPolicy": "Destroy"}})
        # Control planes with an adopted API server come first, while that API server still runs.
        self.delete(
            "ControlPlane",
            *(control_plane["metadata"]["name"] for control_plane in present if "endpointRef" in control_plane["spec"]),
        )
        for kind in _ORDER:
            self.delete(kind, *dict.fromkeys(self.created.pop(kind, ())))


def _resource(kind: str) -> str:
    return kind if kind == "Secret" else f"{kind.lower()}.controlplane.kplane.dev"
