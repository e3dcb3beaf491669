"""Reconciler of ControlPlaneEndpoint: publishes the effective addresses, and whether an API server answers there."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from kplane.api import READY, ConditionStatus, ControlPlane, ControlPlaneEndpoint, find_condition
from kplane.api.conditions import REACHABLE
from kplane.api.names import CA_KEY, kubeconfig_secret_name, management_namespace
from kplane.api.reasons import Reason
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.endpoints.addresses import addresses_of, written_urls
from kplane.controlplane_operator.endpoints.credentials import EndpointCredentials, check_trust
from kplane.controlplane_operator.failures import Failures
from kplane.controlplane_operator.status.conditions import with_condition
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialEndpoint, as_recorded
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.controlplane_operator.watch.backoff import KeyedBackoff, jittered
from kplane.controlplane_operator.watch.cache import Key, Object
from kplane.controlplane_operator.watch.predicates import is_hibernated
from kplane.pki.entries import data_of
from kplane.provider import ApiError, ClusterConfig, Result, Unreachable
from kplane.provider.client.connections import Connections
from kplane.provider.errors import Forbidden, KubeconfigError, Unauthorized
from kplane.provider.logs import log_fields

__all__ = ["ControlPlaneEndpointReconciler"]

_PROBE_SECONDS: Final = 5.0
_PROMPT_SECONDS: Final = 2.0
"""Time within which an answer is awaited, so that the status needs a single write."""
_PERIOD_SECONDS: Final = 60.0
_FRESH_SECONDS: Final = 30.0
"""Time for which an answer stays valid if the endpoint is reconciled again, for example because of its own status."""
_START_SECONDS: Final = 60.0
"""Time for which an API server that was not reached before may answer 500, because its post-start hooks still run."""
_URLS: Final = ("endpoint", "external_endpoint", "join_endpoint")


@dataclass(frozen=True, slots=True)
class _Told:
    """Content of a condition."""

    status: ConditionStatus
    reason: str
    message: str
    not_ready: bool = False
    """Whether the API server answered that it is not ready."""


_USABLE: Final = _Told("True", Reason.RECONCILED, "usable as it is written")
_ANSWERED: Final = _Told("True", Reason.ANSWERED, "/readyz answered")
_ASLEEP: Final = _Told("False", Reason.HIBERNATED, "its control plane sleeps")
_PROBING: Final = _Told("Unknown", Reason.PROBING, "/readyz is asked for the first time")
_STARTING: Final = _Told(
    "Unknown", Reason.PROBING, "the API server starts: /readyz answers 500 until its post-start hooks have run"
)


class ControlPlaneEndpointReconciler:
    """Reconciler that maintains the status of endpoints, and probes them periodically.

    Condition Ready: the endpoint is usable as it is written. Condition Reachable: its API server answers.
    """

    def __init__(self, context: OperatorContext, *, default_credentials: ClusterConfig | None) -> None:
        """`default_credentials` provide CA and proxy for endpoints without a Secret reference."""
        self.failures: Final = Failures(
            context,
            controller="controlplaneendpoint",
            store=context.stores.endpoints,
            written=PartialEndpoint,
        )
        self._context = context
        self._default = default_credentials
        self._credentials = EndpointCredentials(context, default=default_credentials)
        self._backoff: KeyedBackoff[Key] = KeyedBackoff(first_seconds=1.0)
        self._answered: dict[Key, tuple[ClusterConfig, float]] = {}
        self._starting_since: dict[Key, float] = {}
        """By endpoint: time of the first answer "not ready" of its API server, until another answer."""

    async def reconcile(self, key: Key) -> Result | None:
        """Publish the URLs of one endpoint and probe it."""
        obj = self._context.stores.endpoints.get(key)
        if obj is None:
            self._backoff.forget(key)
            self._answered.pop(key, None)
            self._starting_since.pop(key, None)
            return None
        with log_fields(object=f"ControlPlaneEndpoint/{key[1]}"):
            endpoint = ControlPlaneEndpoint.model_validate(obj)
            owner = self._owner(endpoint)
            if owner is not None and (owner.get("status") or {}).get("endpoint") is None:
                return None  # the publication of the control plane enqueues the endpoint again
            if owner is not None and is_hibernated(owner):
                self._answered.pop(key, None)
                await self._publish(endpoint, ready=_USABLE, reachable=_ASLEEP)
                await self.failures.over(key)
                return None
            try:
                target = await self._target(endpoint)
            except ConditionError as failure:
                self._context.metrics.condition_failed("controlplaneendpoint", reason=failure.reason)
                cause = failure.reason, failure.message
                await self._publish(endpoint, ready=_Told("False", *cause), reachable=_Told("Unknown", *cause))
                return None if failure.waits_for_event else Result(self._backoff.next(key))
            result = _ANSWERED if self._is_fresh(key, target) else await self._probe(endpoint, target=target)
            if self._starts(key, endpoint, found=result):
                result = _STARTING
            await self._publish(endpoint, ready=_USABLE, reachable=result)
            await self.failures.over(key)
            if result is not _ANSWERED:
                self._answered.pop(key, None)
                return Result(self._backoff.next(key, reason=result.reason))
            self._backoff.forget(key)
            return Result(jittered(_PERIOD_SECONDS))

    def _owner(self, endpoint: ControlPlaneEndpoint) -> Object | None:
        """Return the control plane for which kplane created the endpoint; None for other endpoints."""
        owner = next((ref for ref in endpoint.metadata.owner_references if ref.name == endpoint.name), None)
        obj = self._context.stores.control_planes.get(("", endpoint.name)) if owner is not None else None
        return obj if obj is not None and owner is not None and obj["metadata"]["uid"] == owner.uid else None

    def _starts(self, key: Key, endpoint: ControlPlaneEndpoint, *, found: _Told) -> bool:
        """Return whether an API server that is not ready is new or was just woken, so that it has not failed."""
        if not found.not_ready:
            self._starting_since.pop(key, None)
            return False
        reachable = find_condition(endpoint.status.conditions, REACHABLE)
        if reachable is not None and reachable.reason not in (_PROBING.reason, _ASLEEP.reason, Reason.ENDPOINT_PENDING):
            return False
        now = time.monotonic()
        return now - self._starting_since.setdefault(key, now) < _START_SECONDS

    def _is_fresh(self, key: Key, target: ClusterConfig) -> bool:
        probed, until = self._answered.get(key, (None, 0.0))
        return probed == target and time.monotonic() < until

    async def _target(self, endpoint: ControlPlaneEndpoint) -> ClusterConfig:
        """Return the address to probe. Raises ConditionError if the endpoint is not usable as it is written.

        A probe sends no credentials: only the CA and the proxy of the kubeconfig are used.
        """
        urls = written_urls(endpoint)
        ca, proxy = await self._way(endpoint, urls=urls)
        try:
            return ClusterConfig(server=self._address(endpoint, written=urls[0]), ca_data=ca, proxy=proxy)
        except KubeconfigError as error:
            raise ConditionError(Reason.ENDPOINT_INVALID, str(error), waits_for_event=True) from error

    def _address(self, endpoint: ControlPlaneEndpoint, *, written: str) -> str:
        """Return the effective URL, because a server may answer below the path of a tenant and not above."""
        for obj in self._context.stores.control_planes.by("endpoint", endpoint.name):
            try:
                return addresses_of(endpoint, control_plane=as_recorded(obj)).internal
            except ConditionError:
                continue
        return written

    async def _way(self, endpoint: ControlPlaneEndpoint, *, urls: list[str]) -> tuple[bytes | None, str | None]:
        """Return the CA and the proxy for an endpoint; None for the CAs of the system, and for no proxy."""
        if endpoint.spec.credentials_secret_ref is not None:
            credentials = await self._credentials.of(endpoint)
            for url in urls:
                check_trust(credentials, url=url)
            return credentials.ca_data, credentials.proxy
        owner = next(
            (ref for ref in endpoint.metadata.owner_references if ref.kind == ControlPlane.resource.kind), None
        )
        if owner is not None:
            key = management_namespace(owner.name), kubeconfig_secret_name(owner.name)
            published = self._context.stores.secrets.get(key)
            if published is None:
                raise ConditionError(
                    Reason.ENDPOINT_PENDING,
                    f"control plane {owner.name} has not published its CA yet",
                    waits_for_event=False,
                )
            return data_of(published).get(CA_KEY), None
        return (self._default.ca_data, self._default.proxy) if self._default is not None else (None, None)

    async def _probe(self, endpoint: ControlPlaneEndpoint, *, target: ClusterConfig) -> _Told:
        """Probe the API server. If the answer takes long, the URLs are published in the meantime."""
        async with asyncio.TaskGroup() as group:
            probe = group.create_task(_ask(target, connections=self._context.connections))
            await asyncio.wait([probe], timeout=_PROMPT_SECONDS)
            if not probe.done():
                await self._publish(endpoint, ready=_USABLE, reachable=_as_before(endpoint))
        if probe.result() is _ANSWERED:
            self._answered["", endpoint.name] = target, time.monotonic() + _FRESH_SECONDS
        return probe.result()

    async def _publish(self, endpoint: ControlPlaneEndpoint, *, ready: _Told, reachable: _Told) -> None:
        obj = self._context.stores.endpoints.get(("", endpoint.name))
        if obj is None or obj["metadata"].get("generation") != endpoint.metadata.generation:
            return  # the result belongs to another version of the spec, which is reconciled next
        current = ControlPlaneEndpoint.model_validate(obj)
        conditions = current.status.conditions
        for kind, content in ((REACHABLE, reachable), (READY, ready)):
            conditions = with_condition(
                conditions, of=current, type=kind, status=content.status, reason=content.reason, message=content.message
            )
        # Publish only URLs of the spec. A URL that another controller wrote into the status remains.
        urls = {field: getattr(current.spec, field) for field in _URLS}
        status = current.status.model_copy(
            update={**urls, "observed_generation": current.metadata.generation, "conditions": conditions}
        )
        await self._context.status.write(
            self._context.stores.endpoints,
            current,
            status=status,
        )


async def _ask(target: ClusterConfig, *, connections: Connections) -> _Told:
    try:
        async with tenant_client(target, timeout_seconds=_PROBE_SECONDS, connections=connections) as client:
            await client.probe("/readyz")
    except (Unauthorized, Forbidden):
        return _ANSWERED
    except Unreachable as error:
        return _Told("False", error.reason, str(error))
    except ApiError as error:
        return _Told(
            "False",
            Reason.ENDPOINT_UNREACHABLE,
            f"{target.server}/readyz answered {error.status}: {error.message}",
            not_ready=error.status == HTTPStatus.INTERNAL_SERVER_ERROR,
        )
    except KubeconfigError as error:
        return _Told("False", Reason.CERTIFICATE_INVALID, str(error))
    return _ANSWERED


def _as_before(endpoint: ControlPlaneEndpoint) -> _Told:
    reachable = find_condition(endpoint.status.conditions, REACHABLE)
    if reachable is None or reachable.observed_generation != endpoint.metadata.generation:
        return _PROBING
    return _Told(reachable.status, reachable.reason, reachable.message)
