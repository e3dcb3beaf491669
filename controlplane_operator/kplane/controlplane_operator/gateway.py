"""The gateway as the operator knows it: where clients reach it, and whom they trust there."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Gateway"]


@dataclass(frozen=True, slots=True)
class Gateway:
    """One address for all control planes that it serves."""

    url: str
    """Without a path and without a slash at its end."""
    ca: bytes
    """CAs of its serving certificate."""
    namespace: str
    """Where it reads what it needs of control planes."""

    def address(self, cluster_path: str) -> str:
        """Return the URL of a control plane."""
        return f"{self.url}/clusters/{cluster_path}/control-plane"

    def serves(self, url: str) -> bool:
        """Tell whether a URL is one of the gateway's."""
        return url.startswith(f"{self.url}/clusters/")
