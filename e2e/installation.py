"""Installs kplane on a backend that runs Pods, with its chart and helm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.documents import blocks, document
from e2e.kubectl import Kubectl, Object

__all__ = [
    "CHART",
    "GROUP",
    "NAMESPACE",
    "RELEASE",
    "ROOT",
    "Helm",
    "chart_values",
    "document_images",
    "gateway_image",
    "images",
    "require_nothing_left",
    "require_unused",
]

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = ROOT / "deploy" / "chart" / "kplane"
RELEASE: Final = "kplane"
NAMESPACE: Final = "kplane-system"
GROUP: Final = "controlplane.kplane.dev"

_VALUES: Final = ROOT / "e2e" / "values-kind.yaml"
_READY_SECONDS: Final = 600


def images() -> tuple[str, str, str]:
    """Return the images of controlplane-operator, mcm and etcd."""
    return (
        os.environ.get("KPLANE_OPERATOR_IMAGE", "kplane-operator:dev"),
        os.environ.get("KPLANE_MCM_IMAGE", "kplane-mcm:dev"),
        os.environ.get("KPLANE_ETCD_IMAGE", "kplane-etcd:dev"),
    )


def gateway_image() -> str:
    """Return the image of the gateway, which only the tests of the gateway install."""
    return os.environ.get("KPLANE_GATEWAY_IMAGE", "kplane-gateway:dev")


def chart_values() -> dict[str, Any]:
    """Read the default values of the chart."""
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


def document_images() -> Mapping[str, str]:
    """Return the built image for each image that the documents name.

    docs/how-to/install.md has a values file with images of a registry. deploy/values-dev.yaml has the images of
    `make images`, and the chart has the image of etcd.
    """
    (values_block,) = [block for block in blocks(document("how-to/install")) if block.file == "images.yaml"]
    operator, mcm, etcd = images()
    mapping = {chart_values()["etcd"]["image"]: etcd}
    for text in (values_block.text, (ROOT / "deploy" / "values-dev.yaml").read_text()):
        for program, image in (("operator", operator), ("mcm", mcm), ("gateway", gateway_image())):
            settings = yaml.safe_load(text)[program]["image"]
            mapping[f"{settings['repository']}:{settings['tag']}"] = image
    return mapping


def require_unused(kubectl: Kubectl) -> None:
    """Raise AssertionError if the cluster has control planes, because the suite changes and uninstalls kplane.

    An installation without control planes, which an earlier run left behind, is accepted.
    """
    kind = f"controlplanes.{GROUP}"
    if kubectl.find("customresourcedefinition", kind) is not None:
        names = sorted(kubectl.names(kind))
        assert not names, (
            f"failed to use context {kubectl.context}: it has control planes: {', '.join(names)}. The suite would "
            f"change and uninstall the kplane that runs them: use another cluster, or delete the control planes."
        )


def require_nothing_left(kubectl: Kubectl) -> None:
    """Raise AssertionError if an object of kplane is left after kplane was uninstalled."""
    cluster_wide = (
        "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,priorityclasses"
    )
    leftovers = {name for name in kubectl.names("namespaces") if name.startswith("kplane-")}
    leftovers |= kubectl.names(cluster_wide, "-l", "app.kubernetes.io/part-of=kplane")
    leftovers |= kubectl.names("roles,rolebindings", "-A", "-l", "app.kubernetes.io/part-of=kplane")
    leftovers |= {name for name in kubectl.names("customresourcedefinitions") if name.endswith(f".{GROUP}")}
    assert not leftovers, f"failed to uninstall kplane: {', '.join(sorted(leftovers))} still exist"


@dataclass(frozen=True, slots=True)
class Helm:
    """The real helm, on the cluster of the backend."""

    program: str
    kubectl: Kubectl

    @classmethod
    def on(cls, kubectl: Kubectl) -> Helm:
        """Find helm by the variable HELM, or on PATH. Raises AssertionError if both fail."""
        program = os.environ.get("HELM") or shutil.which("helm")
        assert program, "failed to find helm on PATH: install it, or set HELM to its path"
        return cls(program, kubectl)

    def __call__(self, *args: str, timeout_seconds: float = 120.0) -> str:
        """Run helm with these arguments and return its output. Raises AssertionError with helm's errors."""
        command = [self.program, f"--kubeconfig={self.kubectl.kubeconfig}", f"--namespace={NAMESPACE}"]
        command += [f"--kube-context={self.kubectl.context}"] if self.kubectl.context else []
        result = subprocess.run(
            [*command, *args], capture_output=True, text=True, check=False, timeout=timeout_seconds, cwd=ROOT
        )
        assert result.returncode == 0, f"`helm {' '.join(args)}`: {result.stderr.strip()}"
        return result.stdout

    def status(self) -> Object | None:
        """Return the status of the release; None if it is not installed."""
        releases: list[Object] = json.loads(self("list", f"--filter=^{RELEASE}$", "--output=json"))
        return releases[0] if releases else None

    def install(self, *settings: str) -> None:
        """Install or upgrade kplane with the suite's values and these settings, and wait until it is ready."""
        host = self.kubectl(
            "get", "nodes", "-o", "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}"
        )
        values = [*_image_settings(), "controlPlanes.expose=NodePort", f"controlPlanes.externalHost={host}", *settings]
        args = ["upgrade", "--install", RELEASE, str(CHART), "--create-namespace", f"--values={_VALUES}"]
        args += [f"--set={setting}" for setting in values]
        self(*args, "--wait", f"--timeout={_READY_SECONDS}s", timeout_seconds=_READY_SECONDS + 60)


def _image_settings() -> Sequence[str]:
    *operators, etcd = images()
    settings = [f"etcd.image={etcd}", f"controlPlanes.etcdImage={etcd}"]
    for program, image in zip(("operator", "mcm"), operators, strict=True):
        repository, _, tag = image.rpartition(":")
        settings += [f"{program}.image.repository={repository}", f"{program}.image.tag={tag}"]
        # Images that are not loaded into the nodes come from a registry.
        settings += [f"{program}.image.pullPolicy=IfNotPresent"]
    return settings
