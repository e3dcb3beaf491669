"""Check of the inside of a control plane that is to sleep: work that keeps it awake, and the next due time.

Only running controllers know when an autoscaler, a Job or a node needs them. So these objects keep a control plane
awake. Objects with due times wake it at the earliest of these times.

The deletion of a namespace may never end, for example if an API service is down. It keeps a control plane awake for an
hour, and wakes it for further attempts after 2, 4, 8 hours and so on.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from kplane.api.clocks import is_future, read_time
from kplane.controlplane_operator.hibernation.bootstrap_tokens import BootstrapToken, read_bootstrap_token
from kplane.controlplane_operator.hibernation.credentials import Credentials
from kplane.controlplane_operator.hibernation.cron import next_time
from kplane.controlplane_operator.hibernation.service_accounts import list_accounts
from kplane.controlplane_operator.status.leaving import describe_leaving
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import Client, NotFound, Resource
from kplane.provider.client.resources import LEASES, NAMESPACES, SECRETS

__all__ = ["Inside", "look_inside"]

_AUTOSCALERS: Final = Resource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", namespaced=True)
_CRON_JOBS: Final = Resource("batch/v1", "CronJob", "cronjobs", namespaced=True)
_JOBS: Final = Resource("batch/v1", "Job", "jobs", namespaced=True)
_REQUESTS: Final = Resource(
    "certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", namespaced=False
)
_NODE_LEASES: Final = "kube-node-lease"
_TOKENS: Final = "kube-system"
_TOKEN_TYPE: Final = "bootstrap.kubernetes.io/token"  # noqa: S105 - the type of a Secret

_AHEAD: Final = timedelta(seconds=10)
"""Time before a CronJob is due at which its control plane wakes, to start API server and controllers."""
_SOON: Final = timedelta(minutes=1)
"""Minimum length of a sleep. Controllers have the same time for due work, and nodes report more often."""
_TURN_SECONDS: Final = 0.01
"""Time after which other tasks run. The next time of a CronJob takes up to 15 ms to compute."""
_STUCK_AFTER: Final = timedelta(minutes=5)
"""Age from which the deletion of a namespace is reported as stuck."""
_DELETION_KEEPS_AWAKE: Final = timedelta(hours=1)
"""Age up to which the deletion of a namespace keeps its control plane awake."""


@dataclass(frozen=True, slots=True)
class Inside:
    """Result of a check."""

    kept: str = ""
    """Object that keeps the control plane awake, as a clause; empty if there is none."""
    stuck: str = ""
    """Sentence about a namespace whose deletion does not end; empty if there is none.

    With `kept`, this namespace keeps the control plane awake.
    """
    next_wake: datetime | None = None
    """Earliest due time inside; None if there is none."""
    unknown: bool = False
    """Whether the check failed. A later check may succeed."""
    credentials: Credentials = field(default_factory=Credentials)
    """Credentials that only the API server knows."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Objects of a kind, and the judgement of each."""

    resource: Resource
    judge: Callable[[Object, datetime], str | datetime | None]
    """Returns a clause if the object keeps the control plane awake, or the time at which the object is due."""
    options: Mapping[str, Any]
    due: str = "is due"
    """Clause about an object at the time that `judge` returned."""


async def look_inside(client: Client, *, now: datetime, first_seen: dict[str, datetime] | None = None) -> Inside:
    """Return the due times and obstacles to sleep inside. Raises ProviderError if the API server does not answer.

    `first_seen` keeps, by uid across checks, the time at which a deletion with a future time was first seen.
    """
    first_seen = {} if first_seen is None else first_seen
    due: list[datetime] = []
    tokens: list[BootstrapToken | None] = []
    stuck = ""
    for look in _LOOKS:
        try:
            listing = await client.list(look.resource, **look.options)
        except NotFound:
            continue  # the API server does not serve this kind
        if look.resource == SECRETS:
            tokens = [read_bootstrap_token(secret, now=now) for secret in listing.items]
        items = listing.items
        if look.resource == NAMESPACES:
            items = _without_future_deletions(items, now, first_seen)
        turn_ends = time.monotonic() + _TURN_SECONDS
        for obj in items:
            if time.monotonic() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + _TURN_SECONDS
            judgement, leaving = look.judge(obj, now), ""
            if look.resource == NAMESPACES and _is_stuck(obj, now):
                leaving = describe_leaving(obj, now=now, cluster="the control plane")
                stuck = stuck or leaving
            if isinstance(judgement, str):
                return Inside(leaving or f"{_named(look.resource, obj)} {judgement}", stuck=leaving)
            if judgement is None or judgement <= now - _SOON:
                continue  # the due time is over
            if judgement <= now + _SOON:
                return Inside(f"{_named(look.resource, obj)} {look.due}", stuck=leaving)
            due.append(judgement)
    accepted = tuple(token for token in tokens if token is not None)
    credentials = Credentials(accepted, await list_accounts(client))
    return Inside(stuck=stuck, next_wake=min(due, default=None), credentials=credentials)


def _named(resource: Resource, obj: Object) -> str:
    metadata = obj["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else metadata["name"]
    return f"{resource.kind} {name}"


def _autoscaler(_obj: Object, _now: datetime) -> str:
    return "scales by load"


def _namespace(obj: Object, now: datetime) -> str | datetime | None:
    if "deletionTimestamp" not in obj["metadata"]:
        return None
    since = read_time(obj["metadata"]["deletionTimestamp"])
    if since is None or now - since < _DELETION_KEEPS_AWAKE:
        return "is being deleted"
    # An attempt in the last minute counts: the control plane then stays awake for a minute, as for a CronJob.
    attempt = since + 2 * _DELETION_KEEPS_AWAKE
    while attempt <= now - _SOON:
        attempt = since + 2 * (attempt - since)
    return attempt


def _without_future_deletions(items: list[Object], now: datetime, first_seen: dict[str, datetime]) -> list[Object]:
    """Return the namespaces; a future deletion time is replaced by the time at which it was first seen."""
    seen_before, judged = dict(first_seen), list[Object]()
    first_seen.clear()
    for obj in items:
        since = read_time(obj["metadata"].get("deletionTimestamp"))
        if since is None or not is_future(since, now=now):
            judged.append(obj)
            continue
        uid = obj["metadata"].get("uid") or obj["metadata"]["name"]
        seen = first_seen[uid] = seen_before.get(uid, now)
        judged.append({**obj, "metadata": {**obj["metadata"], "deletionTimestamp": seen.isoformat()}})
    return judged


def _is_stuck(obj: Object, now: datetime) -> bool:
    since = read_time(obj["metadata"].get("deletionTimestamp"))
    return since is not None and now - since >= _STUCK_AFTER


def _request(obj: Object, _now: datetime) -> str | None:
    status = obj.get("status") or {}
    decisions = {condition["type"] for condition in status.get("conditions") or ()}
    return None if status.get("certificate") or decisions & {"Denied", "Failed"} else "is pending"


def _node_lease(obj: Object, now: datetime) -> str | None:
    renewed = read_time((obj.get("spec") or {}).get("renewTime"))
    # A Lease with a future time comes from a wrong clock. The node would count as alive until then.
    reports = renewed is not None and renewed > now - _SOON and not is_future(renewed, now=now)
    return "says that its node reports" if reports else None


def _job(obj: Object, _now: datetime) -> str | datetime | None:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    ended = [condition for condition in status.get("conditions") or () if condition["type"] in {"Complete", "Failed"}]
    if not any(condition["status"] == "True" for condition in ended):
        return None if spec.get("suspend") else "runs"
    time_to_live = spec.get("ttlSecondsAfterFinished")
    finished = max(
        (ended_at for condition in ended if (ended_at := read_time(condition.get("lastTransitionTime")))), default=None
    )
    if time_to_live is None or finished is None:
        return None
    return finished + timedelta(seconds=time_to_live)


def _cron_job(obj: Object, now: datetime) -> str | datetime | None:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if spec.get("suspend"):
        return None
    ran, created = read_time(status.get("lastScheduleTime")), read_time(obj["metadata"].get("creationTimestamp"))
    # A run with a future time, from a wrong clock, counts as now. Otherwise it would hide the due times until then.
    last = min(ran or created or now, now)
    after = now - _SOON + _AHEAD
    try:
        due = next_time(
            spec["schedule"],
            zone=spec.get("timeZone"),
            after=max(after, last) if ran is not None else after,
            last=last,
        )
    except ValueError as error:
        return f"has a schedule whose times kplane cannot compute ({error})"
    return due - _AHEAD if due is not None else None


def _bootstrap_token(obj: Object, _now: datetime) -> datetime | None:
    try:
        return read_time(base64.b64decode((obj.get("data") or {}).get("expiration", "")).decode())
    except (binascii.Error, ValueError):
        return None


_LOOKS: Final = (
    # Namespaces are listed with their status, which explains why a deletion does not end.
    _Look(NAMESPACES, _namespace, {}, due="is being deleted, and its controllers try again"),
    _Look(_AUTOSCALERS, _autoscaler, {"metadata_only": True}),
    _Look(LEASES, _node_lease, {"namespace": _NODE_LEASES}),
    _Look(_REQUESTS, _request, {}),
    _Look(_JOBS, _job, {}),
    _Look(_CRON_JOBS, _cron_job, {}),
    _Look(SECRETS, _bootstrap_token, {"namespace": _TOKENS, "field_selector": f"type={_TOKEN_TYPE}"}),
)
