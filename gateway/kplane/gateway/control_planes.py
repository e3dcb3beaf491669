"""Routes of control planes, built from their objects and Secrets in the management cluster."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import logging
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from kplane.api import READY, ControlPlane, ControlPlaneMode, ControlPlanePhase, StartPolicy
from kplane.api.clocks import is_future, read_time
from kplane.api.conditions import HIBERNATED, WAITS_FOR_ROOM
from kplane.api.names import (
    CONTROL_PLANE_LABEL,
    GATEWAY_ACCOUNTS_KEY,
    GATEWAY_AUTHENTICATION_KEY,
    GATEWAY_BOOTSTRAP_TOKENS_KEY,
    GATEWAY_HOST_KEY,
    GATEWAY_LIMITS_KEY,
    GATEWAY_SECRET_KEYS,
    LAST_USED_ANNOTATION,
    UID_ANNOTATION,
    WAKE_REQUESTED_ANNOTATION,
    WRITES_HELD_UNTIL_ANNOTATION,
    gateway_secret_name,
)
from kplane.gateway.errors import RouteInvalid
from kplane.gateway.routes import FrontProxy, Hold, KeyPair, Limits, Route, Sleep, Upstream
from kplane.gateway.tokens import BootstrapTokens, ServiceAccounts, TokenTrust, read_token_keys
from kplane.provider import Client, Informer, Resource

__all__ = [
    "CONTROL_PLANES",
    "SECRETS_SELECTOR",
    "Progress",
    "RouteTable",
    "last_use",
    "may_sleep",
    "report_use",
    "request_wake",
]

logger = logging.getLogger(__name__)

CONTROL_PLANES: Final = Resource(
    ControlPlane.resource.api_version, ControlPlane.resource.kind, ControlPlane.resource.plural, namespaced=False
)
SECRETS_SELECTOR: Final = CONTROL_PLANE_LABEL

_AT_GATEWAY: Final = re.compile("/clusters/([^/]+)/control-plane$")
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
_LONGEST_SENTENCE: Final = 1024
_PUBLISHED_SOON: Final = _BEGINNING + timedelta(microseconds=1)
"""Placeholder for the time of a wake-up request: a control plane that is not published yet needs no wake-up request."""

_Object = Mapping[str, Any]


class Progress(NamedTuple):
    """Highest resourceVersion of each kind that the routes include.

    A watch delivers the objects of a kind in the order of their resourceVersions. So the routes include all lower
    versions.
    """

    control_planes: int = 0
    secrets: int = 0


class RouteTable:
    """Builds the routes of control planes from ControlPlane objects and Secrets, and rebuilds only routes of changed
    objects.
    """

    def __init__(self, control_planes: Informer, secrets: Informer, *, namespace: str) -> None:
        """`namespace` is the namespace of the Secrets."""
        self._control_planes = control_planes
        self._secrets = secrets
        self._namespace = namespace
        self._known: dict[str, Route] = {}
        """Routes by name of the control plane."""
        self._at_path: dict[str, set[str]] = {}
        """Names of control planes by clusterPath. A host name begins with the clusterPath, so control planes with equal
        host names share an entry.
        """
        self._of_secret: dict[str, str] = {}
        self._changed: set[str] = set()
        self._noted = Progress()
        self.progress = Progress()

    @property
    def routes(self) -> list[Route]:
        """Routes of all control planes with a route, sorted by name. A clusterPath has a single route."""
        return [self._known[name] for name in sorted(map(min, self._at_path.values()))]

    def control_plane(self, name: str, version: int) -> None:
        """Record that a control plane was added, changed or deleted at this resourceVersion."""
        self._noted = self._noted._replace(control_planes=max(self._noted.control_planes, version))
        self._of_secret[gateway_secret_name(name)] = name
        self._changed.add(name)

    def secret(self, name: str, version: int) -> None:
        """Record that a Secret was added, changed or deleted at this resourceVersion."""
        self._noted = self._noted._replace(secrets=max(self._noted.secrets, version))
        if name in self._of_secret:
            self._changed.add(self._of_secret[name])

    def renew(self) -> Mapping[str, Route | None]:
        """Rebuild the routes of changed objects. Returns changed routes by path; None for a removed route.

        A damaged Secret affects only the route of its own control plane. Of two control planes with the same path, the
        first by name is served.
        """
        names, self._changed = self._changed, set()
        self.progress = self._noted
        before: dict[str, Route | None] = {}
        for name in sorted(names):
            former, route = self._known.get(name), self._made(name)
            for path in {candidate.cluster_path for candidate in (former, route) if candidate is not None}:
                before.setdefault(path, self._served(path))
            self._put(name, former, route)
        after = {path: self._served(path) for path in before}
        return {path: route for path, route in after.items() if route != before[path]}

    def _made(self, name: str) -> Route | None:
        secret = gateway_secret_name(name)
        control_plane = self._control_planes.get(name)
        if control_plane is None:
            self._of_secret.pop(secret, None)
            return None
        return route_of(control_plane, self._secrets.get(secret, namespace=self._namespace))

    def _put(self, name: str, former: Route | None, route: Route | None) -> None:
        if former is not None:
            del self._known[name]
            names = self._at_path[former.cluster_path]
            names.discard(name)
            if not names:
                del self._at_path[former.cluster_path]
        if route is not None:
            self._known[name] = route
            names = self._at_path.setdefault(route.cluster_path, set())
            names.add(name)
            if len(names) > 1:
                # The operator grants each path to a single control plane, so this case is an error.
                logger.warning("clusterPath %s is of two control planes; the first one is served", route.cluster_path)

    def _served(self, path: str) -> Route | None:
        names = self._at_path.get(path)
        return self._known[min(names)] if names else None


def route_of(control_plane: _Object | None, secret: _Object | None) -> Route | None:
    """Return the route of a control plane; None if the gateway must not serve it.

    Without a valid Secret, the route has no API server. The operator writes the Secret before the status shows the
    address and the sleep of the control plane. Until then, requests wait.
    """
    if control_plane is None:
        return None
    status = control_plane.get("status") or {}
    if "endpointRef" in (control_plane.get("spec") or {}):
        return None
    uid, name = control_plane["metadata"]["uid"], control_plane["metadata"]["name"]
    if secret is not None and not _is_of(secret, uid):
        secret = None
    # A control plane of mode Dedicated has no clusterPath, and is published under its name.
    path = status.get("clusterPath") or _published_path(status)
    if path is None and secret is not None and not status.get("endpoint"):
        path = _path_asked_for(control_plane)
    if secret is not None and GATEWAY_HOST_KEY in (secret.get("data") or {}):
        return _by_host(control_plane, secret, path=path or name)
    if not path or _is_elsewhere(status, path=path):
        return None
    reason = f"the control plane has no API server now; its phase is {status.get('phase') or 'unknown'}"
    try:
        if secret is None:
            return Route(key=uid, cluster_path=path, upstream=None, why_absent=reason)
        upstream, limits = _upstream(secret), _limits(secret)
        sleep, full = _sleep(control_plane), _is_full(status)
        return Route(
            key=uid,
            cluster_path=path,
            upstream=upstream,
            asleep=sleep,
            held=_hold(secret),
            limits=limits,
            full=full,
        )
    except RouteInvalid as error:
        logger.warning("control plane %s cannot be served: %s", control_plane["metadata"]["name"], error)
    try:
        return Route(key=uid, cluster_path=path, upstream=None, why_absent="the gateway cannot reach it")
    except RouteInvalid:
        return None


def _published_path(status: _Object) -> str | None:
    """Return the path at the end of the External endpoint's URL; None if this URL belongs to no gateway."""
    urls = (
        str(endpoint.get("url")) for endpoint in status.get("endpoints") or () if endpoint.get("type") == "External"
    )
    matches = [_AT_GATEWAY.search(url) for url in urls]
    return next((match[1] for match in matches if match is not None), None)


def _path_asked_for(control_plane: _Object) -> str:
    """Return the path that a control plane will get, before its status contains the path."""
    virtual = control_plane["spec"].get("virtual") or {}
    return str(virtual.get("clusterPath") or control_plane["metadata"]["name"])


def _by_host(control_plane: _Object, secret: _Object, *, path: str) -> Route | None:
    """Return the route of a control plane with a host name; None if its Secret is damaged.

    The route has no write hold and no limits, since the gateway does not see its requests.
    """
    metadata = control_plane["metadata"]
    try:
        host = _value(secret, GATEWAY_HOST_KEY).decode(errors="replace")
        upstream, sleep = Upstream.behind(_server(secret)), _sleep(control_plane)
        return Route(key=metadata["uid"], cluster_path=path, upstream=upstream, asleep=sleep, host=host)
    except RouteInvalid as error:
        logger.warning("control plane %s cannot be served: %s", metadata["name"], error)
        return None


def _is_elsewhere(status: _Object, *, path: str) -> bool:
    """Return whether a control plane is published only under addresses outside the gateway."""
    urls = [str(endpoint.get("url")) for endpoint in status.get("endpoints") or ()]
    return bool(urls) and not any(url.endswith(f"/clusters/{path}/control-plane") for url in urls)


async def request_wake(client: Client, route: Route, at: datetime) -> None:
    """Request a wake-up from the operator. Does nothing if the control plane is awake.

    Raises ProviderError if the write fails: Invalid if a new control plane has taken the name.
    """
    if route.asleep is not None:
        await _annotate(client, route.asleep.name, uid=route.key, annotation=WAKE_REQUESTED_ANNOTATION, at=at)


def may_sleep(control_plane: _Object) -> bool:
    """Return whether a control plane is awake and may fall asleep, so that its last use matters.

    Without a start policy in the spec, the ControlPlaneClass decides, which the gateway does not read. If the class
    allows sleep, the operator has set condition Hibernated.
    """
    spec, status = control_plane.get("spec") or {}, control_plane.get("status") or {}
    mode = (status.get("home") or {}).get("mode") or spec.get("mode", ControlPlaneMode.VIRTUAL)
    if mode != ControlPlaneMode.VIRTUAL or "endpointRef" in spec:
        return False
    if status.get("hibernation") is not None:
        return False
    if (start := (spec.get("virtual") or {}).get("start")) is not None:
        return bool(start == StartPolicy.ON_DEMAND)
    return any(condition["type"] == HIBERNATED for condition in status.get("conditions") or ())


def last_use(control_plane: _Object, *, now: datetime) -> datetime | None:
    """Return the last use that was reported; None without a report, or if the operator would ignore its time."""
    annotations = control_plane["metadata"].get("annotations") or {}
    time = read_time(annotations.get(LAST_USED_ANNOTATION))
    return time if time is not None and not is_future(time, now=now) else None


async def report_use(client: Client, name: str, *, uid: str, at: datetime) -> None:
    """Report the last use of a control plane.

    Raises ProviderError if the write fails: Invalid if a new control plane has taken the name.
    """
    await _annotate(client, name, uid=uid, annotation=LAST_USED_ANNOTATION, at=at)


async def _annotate(client: Client, name: str, *, uid: str, annotation: str, at: datetime) -> None:
    """Write a time into an annotation.

    The uid makes the API server refuse the write if a new control plane has the name.
    """
    metadata = {"uid": uid, "annotations": {annotation: at.isoformat()}}
    await client.patch(CONTROL_PLANES, name, {"metadata": metadata})


def _sleep(control_plane: _Object) -> Sleep | None:
    metadata, status = control_plane["metadata"], control_plane.get("status") or {}
    if not status.get("endpoint"):
        return Sleep(name=metadata["name"], since=_BEGINNING, requested=_PUBLISHED_SOON)
    hibernation = status.get("hibernation")
    if hibernation is None:
        return None
    requested = (metadata.get("annotations") or {}).get(WAKE_REQUESTED_ANNOTATION)
    since = read_time(hibernation.get("since"))
    conditions = status.get("conditions") or ()
    crowded = any(condition["type"] == HIBERNATED and condition["reason"] == WAITS_FOR_ROOM for condition in conditions)
    return Sleep(
        name=metadata["name"],
        since=since or _BEGINNING,
        requested=read_time(requested),
        crowded=crowded,
        problem=_problem(conditions),
        failed=status.get("phase") == ControlPlanePhase.FAILED,
    )


def _problem(conditions: Iterable[_Object]) -> str:
    """Return the message of condition Ready, on a single line of limited length; empty unless the status is False."""
    message = next((condition.get("message") or "" for condition in conditions if _is_not_ready(condition)), "")
    sentence = " ".join(message.split())
    return sentence if len(sentence) <= _LONGEST_SENTENCE else f"{sentence[: _LONGEST_SENTENCE - 1]}…"


def _is_not_ready(condition: _Object) -> bool:
    return bool(condition["type"] == READY and condition.get("status") == "False")


def _hold(secret: _Object) -> Hold | None:
    asked = (secret["metadata"].get("annotations") or {}).get(WRITES_HELD_UNTIL_ANNOTATION)
    until = read_time(asked)
    return Hold(until=until, asked=asked) if asked is not None and until is not None else None


def _is_of(secret: _Object, uid: str) -> bool:
    """Return whether a Secret belongs to this control plane, and not to a deleted control plane of the same name."""
    return bool((secret["metadata"].get("annotations") or {}).get(UID_ANNOTATION) == uid)


def _is_full(status: _Object) -> bool:
    """Return whether a control plane has reached its storage quota, by the operator's last measurement."""
    storage = status.get("storage") or {}
    quota = storage.get("quotaBytes")
    return quota is not None and storage.get("bytes", 0) >= quota


def _limits(secret: _Object) -> Limits:
    """Return the limits of a control plane. Operators without classes, or of other versions, write no limits."""
    if GATEWAY_LIMITS_KEY not in (secret.get("data") or {}):
        return Limits()
    return Limits.from_json(_value(secret, GATEWAY_LIMITS_KEY))


def _value(secret: _Object, key: str) -> bytes:
    try:
        return base64.b64decode((secret.get("data") or {})[key], validate=True)
    except (KeyError, binascii.Error) as error:
        raise RouteInvalid(f"its Secret {secret['metadata']['name']} has no valid {key}") from error


def _upstream(secret: _Object) -> Upstream:
    values = {key: _value(secret, key) for key in GATEWAY_SECRET_KEYS}
    front_proxy = FrontProxy(
        certificate=KeyPair(values["tls.crt"], values["tls.key"]), client_ca=values["client-ca.crt"]
    )
    return Upstream.at(_server(secret), ca=values["ca.crt"], front_proxy=front_proxy, trust=_trust(secret))


def _trust(secret: _Object) -> TokenTrust:
    """Return the tokens that the API server accepts. Operators of former versions write only the keys."""
    keys = read_token_keys(_value(secret, "sa.pub"))
    trust = TokenTrust(keys=keys)
    if GATEWAY_AUTHENTICATION_KEY in (secret.get("data") or {}):
        trust = TokenTrust.from_json(_value(secret, GATEWAY_AUTHENTICATION_KEY), keys=keys)
    return dataclasses.replace(trust, bootstrap_tokens=_bootstrap_tokens(secret), accounts=_accounts(secret))


def _bootstrap_tokens(secret: _Object) -> BootstrapTokens | None:
    if GATEWAY_BOOTSTRAP_TOKENS_KEY not in (secret.get("data") or {}):
        return None
    try:
        return BootstrapTokens.from_json(_value(secret, GATEWAY_BOOTSTRAP_TOKENS_KEY))
    except RouteInvalid as error:
        # The operator cannot repair this entry before the next sleep. All other credentials still work.
        logger.warning("no bootstrap token of Secret %s wakes its control plane: %s", secret["metadata"]["name"], error)
        return None


def _accounts(secret: _Object) -> ServiceAccounts | None:
    if GATEWAY_ACCOUNTS_KEY not in (secret.get("data") or {}):
        return None
    try:
        return ServiceAccounts.from_json(_value(secret, GATEWAY_ACCOUNTS_KEY))
    except RouteInvalid as error:
        # The operator cannot repair this entry before the next sleep. Until then, tokens of any account are good.
        logger.warning(
            "tokens of deleted ServiceAccounts wake the control plane of Secret %s: %s",
            secret["metadata"]["name"],
            error,
        )
        return None


def _server(secret: _Object) -> str:
    return _value(secret, "server").decode(errors="replace")
