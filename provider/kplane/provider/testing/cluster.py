"""A cluster in memory."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

from typing_extensions import override

from kplane.provider.access.config import ClusterConfig
from kplane.provider.client.client import Client
from kplane.provider.client.kinds import BUILT_IN, parse_kind, resource_of
from kplane.provider.client.server_warnings import ApiWarning
from kplane.provider.client.typed import Kind
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.errors import ApiError, Unreachable
from kplane.provider.testing.faults import Fault, Faults, Verb, Warned
from kplane.provider.testing.store import Store
from kplane.provider.testing.transport import FakeTransport

__all__ = ["FakeCluster"]

_FIELD_MANAGER: Final = "test"
"""Field manager of reconcilers that are tested without a manager."""
_numbers: Final = itertools.count(1)


class _Client(Client):
    """Client that closes its transport, which FakeCluster made for this client alone."""

    @override
    async def aclose(self) -> None:
        await self.transport.aclose()


class FakeCluster(Cluster):
    """A cluster in memory for tests of reconcilers, with the real client, cache and controllers.

    The cluster serves Kubernetes' own kinds and `kinds`, which have a status subresource. A class in `kinds` needs its
    plural. Reads, writes, watches, selectors of labels and names, finalizers, generations and conflicts behave as with
    a kube-apiserver. The same holds for merge patches, JSON patches and server-side apply, but lists in `kinds` are
    atomic. The cluster has no admission, validation, defaults, permissions and controllers: owned objects stay when
    their owner is deleted. For these features, test with a real API server (fixture `k8s` of `kplane.testing`).
    """

    def __init__(self, name: str, *, kinds: Iterable[Kind[Any]] = ()) -> None:
        super().__init__(name, config=ClusterConfig(f"https://fake-cluster-{next(_numbers)}.invalid"))
        self._store = Store()
        self._faults = Faults()
        self.warnings: Final[list[ApiWarning]] = []
        """Warnings that the cluster's clients received, oldest first."""
        self._transports: list[FakeTransport] = []
        self._kinds = {(kind.api_version, kind.plural): kind for kind in (*BUILT_IN.values(), *map(resource_of, kinds))}

    def fail(
        self,
        error: ApiError | Unreachable,
        *,
        verb: Verb,
        kind: Kind[Any],
        times: int = 1,
        takes_effect: bool = False,
    ) -> None:
        """Let the next `times` requests of a verb for a kind fail with `error`.

        `verb` is a verb of RBAC. With `takes_effect` a write is executed and only its answer is lost, as if the
        connection broke. Raises ProviderError if `kind` is no name of a kind.
        """
        self._faults.add(Fault(error, verb, parse_kind(kind), times, takes_effect))

    def warn(self, text: str, *, verb: Verb, kind: Kind[Any], times: int = 1) -> None:
        """Add a warning to the answers of the next `times` requests of a verb for a kind; see `fail`.

        Raises ProviderError if `kind` is no name of a kind.
        """
        self._faults.warn(Warned(text, verb, parse_kind(kind), times))

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """Take the API server down within the context: watches end, and each request fails with Unreachable."""
        error = Unreachable(f"{self.config.server} cannot be reached: it is down", kind="connect")
        self._faults.outage = error
        for transport in self._transports:
            transport.end_watches(error)
        try:
            yield
        finally:
            self._faults.outage = None

    @override
    def make_client(self) -> Client:
        wiring, calls = self._live.wiring, self.calls()
        transport = FakeTransport(self.config, store=self._store, kinds=self._kinds, faults=self._faults)
        self._transports.append(transport)

        def collect(warning: ApiWarning) -> None:
            self.warnings.append(warning)
            if wiring.on_warning is not None:
                wiring.on_warning(warning)

        return _Client(
            self.config,
            timeout_seconds=calls.timeout_seconds or wiring.timeout_seconds,
            transport=transport,
            before_write=self._live.before_write,
            limits=wiring.limits.within(calls),
            field_manager=wiring.field_manager or _FIELD_MANAGER,
            field_validation=wiring.field_validation,
            cluster=self._live.name,
            on_warning=collect,
        )
