"""The control planes of a management cluster."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from kplane.api import (
    READY,
    ControllersProfile,
    ControlPlane,
    ControlPlaneMode,
    ControlPlanePhase,
    ControlPlaneRegistration,
    ControlPlaneSnapshot,
    DeletionPolicy,
    SnapshotPhase,
    find_condition,
)
from kplane.api.conditions import HIBERNATED
from kplane.api.names import (
    FAKE_NODES_CONFIG_MAP,
    KUBECONFIG_EXTERNAL_KEY,
    KUBECONFIG_KEY,
    PAUSED_ANNOTATION,
    ROTATE_ANNOTATION,
    SLEEP_REQUESTED_ANNOTATION,
    WAKE_REQUESTED_ANNOTATION,
    kubeconfig_secret_name,
    management_namespace,
)
from kplane.api.reasons import Reason
from kplane.client.adoption import adopt
from kplane.client.errors import ClientError, NoControlPlane, NoKubeconfig, NotSettled
from kplane.client.events import ControlPlaneEvents, KubernetesEvent
from kplane.client.moves import former_home, home_of_mode, patch_for
from kplane.client.settled import Settled, asleep, awake, person_needed, ready
from kplane.client.sleeping import answer, obstacle
from kplane.client.tokens import issue_token
from kplane.client.watching import Change, follow, read_as, served
from kplane.provider import Client, ClusterConfig, NotFound, ProviderError
from kplane.provider.client.resources import CONFIG_MAPS, NODES, SECRETS

__all__ = ["ControlPlanes"]

_CONTROL_PLANES: Final = served(ControlPlane.resource)
_REGISTRATIONS: Final = served(ControlPlaneRegistration.resource)
_SNAPSHOTS: Final = served(ControlPlaneSnapshot.resource)
_FIELD_MANAGER: Final = "kplane-client"
_WAIT_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.3
_RESTORE_SECONDS: Final = 60.0
"""Time within which the operator writes a lost kubeconfig Secret again."""
_ANSWER_SECONDS: Final = 10.0
"""Time within which the operator responds to a sleep request. Conditions may be of an earlier request until then.

It is also the time after which a wait ends if the control plane needs the action of a person.
"""
_SLEEP_HOLDS_SECONDS: Final = 3.0
"""Time within which clients reconnect, and so wake a control plane whose API server has stopped."""
_WAITS_FOR_PERSON: Final = frozenset({"NoSnapshotStorage", "NotRunByKplane"})
"""Reasons of a snapshot that needs the action of a person. The list of all reasons is `kplane.api.reasons`."""
_NOT_FOUND: Final = "ControlPlaneNotFound"
_STARTED: Final[tuple[Settled, ...]] = (ready, awake)


class ControlPlanes:
    """Client for control planes, with the rights of a user of the management cluster.

    Methods raise `kplane.provider.ProviderError` if the API server refuses a request or does not respond. They raise
    ClientError as documented. Methods that wait raise NotSettled after `timeout_seconds`.
    """

    def __init__(self, client: Client) -> None:
        """Use a client of the management cluster. The caller closes `client`."""
        self._client = client

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, config: ClusterConfig | None = None, *, context: str | None = None) -> AsyncIterator[Self]:
        """Connect to the management cluster of `config`, or else of a context of kubectl's kubeconfig.

        Raises KubeconfigError if there is no configuration.
        """
        configuration = config if config is not None else ClusterConfig.default(context=context)
        async with Client(configuration, field_manager=_FIELD_MANAGER) as client:
            yield cls(client)

    @property
    def client(self) -> Client:
        """The client of the management cluster."""
        return self._client

    async def get(self, name: str) -> ControlPlane:
        """Return a control plane. Raises NoControlPlane if it does not exist."""
        try:
            return read_as(ControlPlane, await self._client.get(_CONTROL_PLANES, name))
        except NotFound as error:
            raise self._missing(name, error) from error

    async def list(self) -> Sequence[ControlPlane]:
        """Return all control planes, sorted by name."""
        items = (await self._client.list(_CONTROL_PLANES)).items
        return sorted((read_as(ControlPlane, obj) for obj in items), key=lambda each: each.name)

    def watch(self, name: str | None = None) -> AsyncGenerator[Change[ControlPlane], None]:
        """Yield the existing control planes, then each change, without an end.

        With `name`, only that control plane is watched.
        """
        return follow(self._client, ControlPlane, name=name)

    async def wait(self, name: str, until: Settled = ready, *, timeout_seconds: float = _WAIT_SECONDS) -> ControlPlane:
        """Wait until a control plane exists and `until` returns True for it.

        Raises NotSettled, with the reason and message of a condition, after `timeout_seconds`. A wait for a control
        plane that is ready or awake ends earlier if the condition has needed the action of a person for 10 s.
        """
        last: ControlPlane | None = None
        obstacle: Reason | None = None
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_seconds
        try:
            async with asyncio.timeout_at(deadline) as limit, contextlib.aclosing(self.watch(name)) as changes:
                async for change in changes:
                    last = change.object if change.type != "DELETED" else None
                    if last is not None and until(last):
                        return last
                    former, obstacle = obstacle, person_needed(last) if until in _STARTED else None
                    if obstacle is None:
                        limit.reschedule(deadline)
                    elif obstacle is not former:
                        limit.reschedule(min(deadline, now() + _ANSWER_SECONDS))
        except TimeoutError:
            waited = timeout_seconds if now() >= deadline else _ANSWER_SECONDS
            raise NotSettled(f"{_told(name, last)}, after {waited:g} s") from None
        raise AssertionError("a watch ended")

    async def wait_for_nodes(self, name: str, count: int, *, timeout_seconds: float = _WAIT_SECONDS) -> None:
        """Wait until at least `count` nodes of a control plane are Ready. Raises NotSettled after `timeout_seconds`."""
        ready = 0
        try:
            async with asyncio.timeout(timeout_seconds), Client(await self.config(name)) as tenant:
                while ready < count:
                    await asyncio.sleep(_POLL_SECONDS)
                    with contextlib.suppress(ProviderError):
                        ready = sum(_is_ready(node) for node in (await tenant.list(NODES)).items)
        except TimeoutError:
            raise NotSettled(f"{name} has {ready} of {count} nodes Ready, after {timeout_seconds:g} s") from None

    async def has_fake_nodes(self) -> bool:
        """Return whether control planes get the number of nodes in their annotation `FAKE_NODES_ANNOTATION`."""
        return await self._client.exists(CONFIG_MAPS, FAKE_NODES_CONFIG_MAP, namespace="kube-public")

    async def create(
        self,
        name: str,
        *,
        class_name: str | None = None,
        mode: ControlPlaneMode | str | None = None,
        spec: Mapping[str, Any] | None = None,
        annotations: Mapping[str, str] | None = None,
        wait: bool = False,
        timeout_seconds: float = _WAIT_SECONDS,
    ) -> ControlPlane:
        """Create a control plane, with `spec` as in a manifest; with `wait`, return when it is Ready.

        `class_name` and `mode` take precedence over `spec`. Raises AlreadyExists if a control plane of this name
        exists.
        """
        full_spec: dict[str, Any] = dict(spec or {})
        if class_name is not None:
            full_spec["classRef"] = {"name": class_name}
        if mode is not None:
            full_spec["mode"] = str(ControlPlaneMode(mode))
        body = {"metadata": {"name": name, "annotations": dict(annotations or {})}, "spec": full_spec}
        control_plane = read_as(ControlPlane, await self._client.create(_CONTROL_PLANES, body))
        return await self.wait(name, timeout_seconds=timeout_seconds) if wait else control_plane

    async def clone(self, original: str, name: str, **options: Any) -> ControlPlane:
        """Create a clone of a control plane: its objects with new identities; `options` are the options of `create`."""
        return await self._from({"controlPlaneRef": {"name": original}, "clone": True}, name, **options)

    async def restore(
        self, snapshot: str, name: str, *, identity_secret: str, clone: bool = False, **options: Any
    ) -> ControlPlane:
        """Create a control plane from a ControlPlaneSnapshot: a restore of the saved control plane, or a clone.

        `identity_secret` is the name of a Secret in the operator's namespace with the private key. `options` are the
        options of `create`.
        """
        source: dict[str, Any] = {
            "snapshotRef": {"name": snapshot},
            "identitySecretRef": {"name": identity_secret},
        }
        return await self._from(source | ({"clone": True} if clone else {}), name, **options)

    async def _from(self, source: dict[str, Any], name: str, **options: Any) -> ControlPlane:
        spec = {**(options.pop("spec", None) or {}), "source": source}
        return await self.create(name, spec=spec, **options)

    async def adopt(
        self,
        name: str,
        config: ClusterConfig,
        *,
        namespace: str = "kplane-system",
        external: str | None = None,
        wait: bool = False,
        timeout_seconds: float = _WAIT_SECONDS,
    ) -> ControlPlane:
        """Adopt the API server of `config`; with `wait`, return when it is Ready. See `kplane.client.adoption.adopt`.

        `config` has the credentials of an administrator.
        """
        control_plane = await adopt(self._client, name, config=config, namespace=namespace, external=external)
        return await self.wait(name, timeout_seconds=timeout_seconds) if wait else control_plane

    async def delete(
        self,
        name: str,
        *,
        policy: DeletionPolicy | str | None = None,
        wait: bool = False,
        timeout_seconds: float = _WAIT_SECONDS,
    ) -> None:
        """Delete a control plane; with `wait`, return when the deletion is complete.

        The data are deleted too if the policy in force is Destroy. `policy` changes the policy first. Raises
        NoControlPlane if the control plane does not exist.
        """
        if policy is not None:
            await self._patch(name, {"spec": {"deletionPolicy": str(DeletionPolicy(policy))}})
        control_plane = await self.get(name)
        try:
            await self._client.delete(_CONTROL_PLANES, name, uid=control_plane.metadata.uid)
        except NotFound as error:
            raise self._missing(name, error) from error
        if wait:
            await self._wait_gone(control_plane, timeout_seconds=timeout_seconds)

    async def _wait_gone(self, former: ControlPlane, *, timeout_seconds: float) -> None:
        last = former
        try:
            async with asyncio.timeout(timeout_seconds):
                while last.metadata.uid == former.metadata.uid:
                    await asyncio.sleep(_POLL_SECONDS)
                    last = await self.get(former.name)
        except NoControlPlane:
            return
        except TimeoutError:
            raise NotSettled(f"{_told(former.name, last)}, after {timeout_seconds:g} s") from None

    @contextlib.asynccontextmanager
    async def temporary(self, name: str, **options: Any) -> AsyncIterator[ControlPlane]:
        """Create a control plane, wait until it is Ready, and delete it with its data at the end.

        `options` are the options of `create`.
        """
        options["spec"] = {"deletionPolicy": str(DeletionPolicy.DESTROY), **(options.get("spec") or {})}
        await self.create(name, **options)
        try:
            yield await self.wait(name)
        finally:
            with contextlib.suppress(NoControlPlane):
                await self.delete(name, wait=True)

    async def kubeconfig(self, name: str, *, internal: bool = False) -> str:
        """Return the administrator's kubeconfig, for clients outside of the management cluster.

        With `internal`, the kubeconfig is for pods of the management cluster. Its credentials expire, and the operator
        renews them in the Secret before. Raises NoControlPlane if the control plane does not exist. Raises NoKubeconfig
        if the kubeconfig is not published yet, or if its Secret was lost.
        """
        key = KUBECONFIG_KEY if internal else KUBECONFIG_EXTERNAL_KEY
        try:
            secret = await self._client.get(SECRETS, kubeconfig_secret_name(name), namespace=management_namespace(name))
        except NotFound:
            secret = {}
        content = (secret.get("data") or {}).get(key)
        if content is None:
            raise NoKubeconfig(_why_no_kubeconfig(await self.get(name), key=key, is_lost=not secret))
        return base64.b64decode(content).decode()

    async def restored_kubeconfig(
        self, name: str, *, internal: bool = False, timeout_seconds: float = _WAIT_SECONDS
    ) -> str:
        """Return the kubeconfig as `kubeconfig` does, and wait for the operator to restore a lost Secret.

        A sleeping control plane is woken in this case, because only its API server can issue credentials. Raises
        NoControlPlane if the control plane does not exist, and NotSettled if it does not wake. Raises NoKubeconfig if
        no kubeconfig was ever published, or if the Secret stays lost.
        """
        try:
            return await self.kubeconfig(name, internal=internal)
        except NoKubeconfig:
            if (await self.get(name)).status.endpoint is None:
                raise
        await self.ensure_awake(name, timeout_seconds=timeout_seconds)
        deadline = asyncio.get_running_loop().time() + min(timeout_seconds, _RESTORE_SECONDS)
        while True:
            try:
                return await self.kubeconfig(name, internal=internal)
            except NoKubeconfig:
                if asyncio.get_running_loop().time() >= deadline:
                    raise
                await asyncio.sleep(_POLL_SECONDS)

    async def config(self, name: str, *, internal: bool = False) -> ClusterConfig:
        """Return the kubeconfig of `kubeconfig` as a configuration for `kplane.provider.Client`."""
        return ClusterConfig.from_kubeconfig(await self.kubeconfig(name, internal=internal))

    @contextlib.asynccontextmanager
    async def tenant(
        self, name: str, *, internal: bool = False, timeout_seconds: float = _WAIT_SECONDS
    ) -> AsyncIterator[Client]:
        """Connect to the API of a control plane as its administrator; a sleeping control plane is woken first."""
        await self.ensure_awake(name, timeout_seconds=timeout_seconds)
        kubeconfig = await self.restored_kubeconfig(name, internal=internal, timeout_seconds=timeout_seconds)
        async with Client(ClusterConfig.from_kubeconfig(kubeconfig), field_manager=_FIELD_MANAGER) as client:
            yield client

    async def token(self, name: str, *, internal: bool = False, lifetime: timedelta | None = None) -> str:
        """Return a bearer token for the API of a control plane: the published token, or with `lifetime` a new token.

        Raises ClientError if the control plane publishes a client certificate instead of a token.
        """
        if lifetime is not None:
            async with self.tenant(name, internal=internal) as tenant:
                return await issue_token(tenant, seconds=round(lifetime.total_seconds()))
        published = (await self.config(name, internal=internal)).token
        if published is None:
            raise ClientError(f"{name} publishes a client certificate and no token; use its kubeconfig")
        return published

    async def events(self, name: str) -> Sequence[KubernetesEvent]:
        """Return the Events of a control plane and of its related objects, the latest last.

        Raises NoControlPlane if the control plane does not exist.
        """
        return await ControlPlaneEvents(self._client, await self.get(name)).read()

    async def follow_events(self, name: str) -> AsyncGenerator[KubernetesEvent, None]:
        """Yield the Events that `events` returns, then each new Event, without an end.

        Close the generator by `contextlib.aclosing`.
        """
        async with contextlib.aclosing(ControlPlaneEvents(self._client, await self.get(name)).follow()) as events:
            async for event in events:
                yield event

    async def move(self, name: str, *, mode: ControlPlaneMode | str, plan: bool = False) -> ControlPlane:
        """Request a move of the data to a home of another mode, or with `plan` an estimate of the move. Does not wait.

        The settings of the mode come from the current or former home in that mode, and from the settings before the
        last move.
        """
        control_plane, desired_mode = await self.get(name), ControlPlaneMode(mode)
        home = home_of_mode(control_plane, desired_mode)
        return await self._patch(name, patch_for(control_plane, mode=desired_mode, home=home, plan=plan))

    async def abort_move(self, name: str) -> ControlPlane:
        """Request that the data stay in their current home, which aborts a planned or running move. Does not wait."""
        control_plane = await self.get(name)
        return await self._patch(
            name, patch_for(control_plane, mode=control_plane.home.mode, home=control_plane.home, plan=False)
        )

    async def roll_back(self, name: str) -> ControlPlane:
        """Request that the data return to their former home. Before the cut, this aborts the move. Does not wait."""
        control_plane = await self.get(name)
        home = former_home(control_plane)
        return await self._patch(name, patch_for(control_plane, mode=home.mode, home=home, plan=False))

    async def sleep(self, name: str, *, wait: bool = False, timeout_seconds: float = _WAIT_SECONDS) -> ControlPlane:
        """Request that the API server stops until a client needs it; with `wait`, return when it has stopped.

        Raises ClientError as soon as an obstacle to the sleep is known, or if a client wakes the control plane
        immediately. The request stays in force: the control plane sleeps when the obstacle is gone.
        """
        requested = await self._annotate(name, SLEEP_REQUESTED_ANNOTATION, _now())
        return await self._wait_asleep(requested, timeout_seconds=timeout_seconds) if wait else requested

    async def _wait_asleep(self, asked: ControlPlane, *, timeout_seconds: float) -> ControlPlane:
        name, former = asked.name, answer(asked)

        def is_decided(control_plane: ControlPlane) -> bool:
            return asleep(control_plane) or obstacle(control_plane) is not None

        def is_decided_anew(control_plane: ControlPlane) -> bool:
            return asleep(control_plane) or obstacle(control_plane) not in {None, former}

        if former is None:
            latest = await self.wait(name, is_decided, timeout_seconds=timeout_seconds)
        else:
            try:
                seconds = min(_ANSWER_SECONDS, timeout_seconds)
                latest = await self.wait(name, is_decided_anew, timeout_seconds=seconds)
            except NotSettled:
                seconds = max(timeout_seconds - _ANSWER_SECONDS, _POLL_SECONDS)
                latest = await self.wait(name, is_decided, timeout_seconds=seconds)
        if not asleep(latest):
            raise ClientError(f"ControlPlane {name} does not sleep: {obstacle(latest)}")
        with contextlib.suppress(NotSettled):
            woken = await self.wait(name, lambda each: not asleep(each), timeout_seconds=_SLEEP_HOLDS_SECONDS)
            raise ClientError(f"ControlPlane {name} slept and was woken again: {_told(name, woken)}")
        return latest

    async def wake(self, name: str) -> ControlPlane:
        """Request that the API server of a sleeping control plane starts."""
        return await self._annotate(name, WAKE_REQUESTED_ANNOTATION, _now())

    async def ensure_awake(self, name: str, *, timeout_seconds: float = _WAIT_SECONDS) -> None:
        """Wake a control plane if it sleeps, and wait for its API server; some addresses do not wake it on use."""
        if asleep(await self.get(name)):
            await self.wake(name)
            await self.wait(name, awake, timeout_seconds=timeout_seconds)

    async def pause(self, name: str) -> ControlPlane:
        """Pause the reconciliation and the deletion of a control plane."""
        return await self._annotate(name, PAUSED_ANNOTATION, "true")

    async def resume(self, name: str) -> ControlPlane:
        """Resume the reconciliation of a control plane."""
        return await self._annotate(name, PAUSED_ANNOTATION, None)

    async def rotate(self, name: str) -> ControlPlane:
        """Request a rotation of CAs and ServiceAccount key, in steps, while clients continue to work."""
        return await self._annotate(name, ROTATE_ANNOTATION, _now())

    async def register(
        self,
        name: str,
        *,
        services: tuple[str, ...] = ("controllers",),
        profile: ControllersProfile | str | None = None,
    ) -> ControlPlaneRegistration:
        """Request services for a control plane, by a registration of the same name.

        `profile` is the profile of controllers. An existing registration of this name is updated.
        """
        spec: dict[str, Any] = {"controlPlaneRef": {"name": name}, "services": list(services)}
        if profile is not None:
            spec["controllers"] = {"profile": str(ControllersProfile(profile))}
        body = {"metadata": {"name": name}, "spec": spec}
        return read_as(ControlPlaneRegistration, await self._client.apply(_REGISTRATIONS, body, force=True))

    async def unregister(self, name: str) -> None:
        """Delete the registration of this name, which stops its services; a missing registration is no error."""
        with contextlib.suppress(NotFound):
            await self._client.delete(_REGISTRATIONS, name)

    async def registrations(self, of: str | None = None) -> Sequence[ControlPlaneRegistration]:
        """Return the registrations of a control plane, or all registrations, sorted by name."""
        selector = f"spec.controlPlaneRef.name={of}" if of is not None else None
        response = await self._client.list(_REGISTRATIONS, field_selector=selector)
        return sorted((read_as(ControlPlaneRegistration, obj) for obj in response.items), key=lambda each: each.name)

    async def snapshot(
        self, name: str, *, of: str, wait: bool = False, timeout_seconds: float = _WAIT_SECONDS
    ) -> ControlPlaneSnapshot:
        """Save the data and keys of a control plane; with `wait`, return when they are saved.

        Raises ClientError as soon as the snapshot waits for the action of a person. The snapshot stays, and is made
        after that action. Raises NoControlPlane if there is no control plane with name `of`.
        """
        body = {"metadata": {"name": name}, "spec": {"controlPlaneRef": {"name": of}}}
        snapshot = read_as(ControlPlaneSnapshot, await self._client.create(_SNAPSHOTS, body))
        if not wait:
            return snapshot
        latest = snapshot
        try:
            changes = follow(self._client, ControlPlaneSnapshot, name=name)
            async with asyncio.timeout(timeout_seconds), contextlib.aclosing(changes):
                async for change in changes:
                    latest = change.object
                    if change.type == "DELETED":
                        raise ClientError(f"ControlPlaneSnapshot {name} was deleted before it was complete")
                    if latest.status.phase is SnapshotPhase.COMPLETED:
                        return latest
                    await self._check_waiting(latest)
        except TimeoutError:
            condition = find_condition(latest.status.conditions, READY)
            cause = f": {condition.message}" if condition is not None else ""
            raise NotSettled(f"snapshot {name} is not complete after {timeout_seconds:g} s{cause}") from None
        raise AssertionError("a watch ended")

    async def _check_waiting(self, snapshot: ControlPlaneSnapshot) -> None:
        """Raise ClientError if a snapshot waits for a condition that only a person can change."""
        ready = find_condition(snapshot.status.conditions, READY)
        if ready is None or ready.status == "True":
            return
        if ready.reason == _NOT_FOUND:
            # The operator may have seen the snapshot before it saw a control plane that was created just before.
            await self.get(snapshot.spec.control_plane_ref.name)
        elif ready.reason in _WAITS_FOR_PERSON:
            raise ClientError(
                f"snapshot {snapshot.name} is not made ({ready.reason}): {ready.message}; the snapshot stays"
                f" and waits, to give it up: kplane backup delete {snapshot.name}"
            )

    async def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot and its file, without a wait. Raises `kplane.provider.NotFound` if it does not exist."""
        await self._client.delete(_SNAPSHOTS, name)

    async def snapshots(self, of: str | None = None) -> Sequence[ControlPlaneSnapshot]:
        """Return the snapshots of a control plane, or all snapshots, sorted by name."""
        selector = f"spec.controlPlaneRef.name={of}" if of is not None else None
        response = await self._client.list(_SNAPSHOTS, field_selector=selector)
        return sorted((read_as(ControlPlaneSnapshot, obj) for obj in response.items), key=lambda each: each.name)

    async def _annotate(self, name: str, annotation: str, value: str | None) -> ControlPlane:
        return await self._patch(name, {"metadata": {"annotations": {annotation: value}}})

    async def _patch(self, name: str, body: dict[str, Any]) -> ControlPlane:
        try:
            return read_as(ControlPlane, await self._client.patch(_CONTROL_PLANES, name, body))
        except NotFound as error:
            raise self._missing(name, error) from error

    def _missing(self, name: str, error: NotFound) -> ClientError:
        if "name" not in error.details:
            # An API server that serves the kind names the object in its error.
            return ClientError(
                f"{self._client.config.server} has no kind ControlPlane: install kplane there, or choose another"
                " context"
            )
        return NoControlPlane(f"there is no ControlPlane {name}; see `kubectl get controlplanes`")


def _told(name: str, control_plane: ControlPlane | None) -> str:
    if control_plane is None:
        return f"ControlPlane {name} is not there"
    phase = control_plane.status.phase or ControlPlanePhase.PENDING
    condition = find_condition(control_plane.status.conditions, READY)
    if condition is not None and condition.status == "True":
        # A control plane that is Ready may be awake against a sleep request, or asleep against a wake request.
        condition = find_condition(control_plane.status.conditions, HIBERNATED)
    cause = f" ({condition.reason}: {condition.message})" if condition is not None else ""
    return f"ControlPlane {name} is {phase}{cause}"


def _why_no_kubeconfig(control_plane: ControlPlane, *, key: str, is_lost: bool) -> str:
    name = control_plane.name
    state, secret = _told(name, control_plane), f"{management_namespace(name)}/{kubeconfig_secret_name(name)}"
    if control_plane.status.endpoint is None:
        return f"{state}: it has published no kubeconfig yet"
    if not is_lost:
        return f"{state}: its Secret {secret} has no key {key}; it is published for the other kind of client only"
    if asleep(control_plane):
        return f"{state}: its Secret {secret} is gone; the operator writes it again after a wake: kplane wake {name}"
    return f"{state}: its Secret {secret} is gone, and the operator has not written it again yet; try again in a minute"


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    return any(condition["type"] == READY and condition["status"] == "True" for condition in conditions)


def _now() -> str:
    # With fractions of a second: a wake must be later than a sleep that started in the same second.
    return datetime.now(UTC).isoformat()
