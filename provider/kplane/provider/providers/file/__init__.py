"""Provider of kubeconfig files."""

from __future__ import annotations

from kplane.provider.providers.file.provider import FileProvider

__all__ = ["FileProvider"]
