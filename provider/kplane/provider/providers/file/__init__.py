"""Clusters from kubeconfig files."""

from __future__ import annotations

from kplane.provider.providers.file.provider import DEFAULT_GLOBS, FileProvider

__all__ = ["DEFAULT_GLOBS", "FileProvider"]
