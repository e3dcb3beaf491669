"""Which API servers an instance may work with: those of its own minor version, and of the next."""

from __future__ import annotations

from api import KubernetesVersion
from mcm.configuration import PROGRAM
from mcm.errors import ConfigurationError
from provider import Cluster
from provider.providers.registration import VERSION_ATTRIBUTE
from workloads import Runtime

__all__ = ["check_skew"]


async def check_skew(cluster: Cluster, *, runtime: Runtime) -> None:
    """Raise ConfigurationError where an instance is not to work with the API server of a cluster.

    By https://kubernetes.io/releases/version-skew-policy/ kube-controller-manager is not newer than kube-apiserver, and
    one minor version older at most. An API server whose version is not known is let pass. Raises RuntimeFailure where
    kube-controller-manager does not tell its own version.
    """
    reported = cluster.attributes.get(VERSION_ATTRIBUTE)
    server = KubernetesVersion.parse(f"{reported}.0") if reported else None
    if server is None:
        return
    text = await runtime.version(PROGRAM)
    own = KubernetesVersion.parse(text)
    if own is None or server.minors_after(own) in {0, 1}:
        return
    raise ConfigurationError(
        f"registration {cluster.name}: its API server is Kubernetes {reported}, and {PROGRAM} {own} works with"
        f" {own.major}.{own.minor} and {own.major}.{own.minor + 1} only; bring the control plane to one of them, or mcm"
        " to another version"
    )
