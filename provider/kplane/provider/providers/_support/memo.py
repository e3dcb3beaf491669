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

    Parsing a kubeconfig blocks the loop for up to 0.1 s, and providers read a kubeconfig at each event. The least
    recently used kubeconfigs are evicted if their total size exceeds `most_bytes`: by default about 5,000 kubeconfigs
    of usual size. The last kubeconfig always stays.
    """

    def __init__(self, *, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        # Keys are digests, which need less memory than the kubeconfigs.
        self._results: OrderedDict[bytes, tuple[ClusterConfig | str, int]] = OrderedDict()

    def read(self, kubeconfig: bytes) -> ClusterConfig:
        """Return the result of `ClusterConfig.from_kubeconfig`, or raise its KubeconfigError."""
        digest = hashlib.sha256(kubeconfig).digest()
        if digest not in self._results:
            self._add(digest, _read(kubeconfig), len(kubeconfig))
        self._results.move_to_end(digest)
        result, _ = self._results[digest]
        if isinstance(result, str):
            raise KubeconfigError(result)
        return result

    def _add(self, digest: bytes, result: ClusterConfig | str, size: int) -> None:
        self._results[digest] = result, size
        self._bytes += size
        while self._bytes > self._most_bytes and len(self._results) > 1:
            _, (_, evicted_size) = self._results.popitem(last=False)
            self._bytes -= evicted_size


def _read(kubeconfig: bytes) -> ClusterConfig | str:
    try:
        return ClusterConfig.from_kubeconfig(kubeconfig)
    except KubeconfigError as error:
        return str(error)
