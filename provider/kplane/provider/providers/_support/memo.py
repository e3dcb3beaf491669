"""Cache of parsed kubeconfigs from untrusted writers."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

from kplane.provider.access.config import ClusterConfig
from kplane.provider.errors import KubeconfigError

__all__ = ["KubeconfigMemo"]

_MOST_BYTES: Final = 32 * 1024**2


class KubeconfigMemo:
    """Caches parsed kubeconfigs, and the errors of invalid kubeconfigs.

    Parsing a kubeconfig blocks the loop for up to 0.1 s, and objects are evaluated often. The least recently used
    entries are evicted if all entries exceed `most_bytes`: about 5,000 kubeconfigs of usual size.
    """

    def __init__(self, *, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        # Keys are digests, which saves the memory of the texts.
        self._known: OrderedDict[bytes, tuple[ClusterConfig | str, int]] = OrderedDict()

    def read(self, kubeconfig: bytes) -> ClusterConfig:
        """Return the result of `ClusterConfig.from_kubeconfig`, or raise its KubeconfigError."""
        digest = hashlib.sha256(kubeconfig).digest()
        if digest not in self._known:
            self._keep(digest, _read(kubeconfig), len(kubeconfig))
        self._known.move_to_end(digest)
        found, _ = self._known[digest]
        if isinstance(found, str):
            raise KubeconfigError(found)
        return found

    def _keep(self, digest: bytes, found: ClusterConfig | str, size: int) -> None:
        self._known[digest] = found, size
        self._bytes += size
        while self._bytes > self._most_bytes and len(self._known) > 1:
            _, (_, forgotten) = self._known.popitem(last=False)
            self._bytes -= forgotten


def _read(kubeconfig: bytes) -> ClusterConfig | str:
    try:
        return ClusterConfig.from_kubeconfig(kubeconfig)
    except KubeconfigError as error:
        return str(error)
