"""Which version of Kubernetes a control plane may have, after the one that it runs."""

from __future__ import annotations

from typing import Final

from kplane.api import KubernetesVersion

__all__ = ["OLDEST", "why_not"]

OLDEST: Final = KubernetesVersion(1, 34, 0)
"""Before, kube-apiserver does not read the configuration of authentication that it gets here (KEP-3331, v1)."""


def why_not(wanted: KubernetesVersion, *, running: KubernetesVersion | None, patches_back: bool = False) -> str | None:
    """Say in a sentence why `wanted` is refused; None where it is not. `running` is what the API server reports.

    An API server may have stored objects in versions that an older one does not know, and every minor version may drop
    what the one before had only deprecated: https://kubernetes.io/releases/version-skew-policy/ has upgrades step by
    step. `patches_back` lets an older patch of the same minor version pass.
    """
    if wanted < OLDEST:
        return f"version {wanted} is older than {OLDEST}, which kplane needs; set spec.version to that or newer"
    if running is None or wanted == running:
        return None
    steps = wanted.minors_after(running)
    if steps > 1:
        return (
            f"version {wanted} skips a minor version: {running} runs, and after it comes"
            f" {running.major}.{running.minor + 1}; set spec.version to a release of that first"
        )
    if wanted < running and not (patches_back and steps == 0):
        return (
            f"version {wanted} is older than {running}, which runs, and may not be able to read what that has stored;"
            f" set spec.version to {running} or newer"
        )
    return None
