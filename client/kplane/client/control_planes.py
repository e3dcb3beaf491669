"""The control planes of one management cluster."""

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
from kplane.client.adoption import adopt
from kplane.client.errors import ClientError, NoControlPlane, NoKubeconfig, NotSettled
from kplane.client.events import ControlPlaneEvents, KubernetesEvent
from kplane.client.moves import former_home, home_of_mode, patch_for
from kplane.client.settled import Settled, asleep, awake, ready
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
"""Time in which the operator writes a kubeconfig Secret again that was lost."""
_ANSWER_SECONDS: Final = 10.0
"""Time in which the operator answers a request to sleep. What its conditions say until then may be older."""
_SLEEP_HOLDS_SECONDS: Final = 3.0
"""Time in which clients whose connections ended with the API server come back, and wake it."""
_WAITS_FOR_PERSON: Final = frozenset({"NoSnapshotStorage", "NotRunByKplane"})
"""Reasons of a snapshot that no time changes. The operator's list of reasons is above this package."""
_NOT_FOUND: Final = "ControlPlaneNotFound"


class ControlPlanes:
    """Creates, follows, changes and deletes control planes, with the rights of a user of the management cluster.

    All methods raise `kplane.provider.ProviderError` if the API server refuses or does not answer, and ClientError as
    they say. Waits end with NotSettled after `timeout_seconds`.
    """

    def __init__(self, client: Client) -> None:
        """Use a client of the management cluster, which its owner closes."""
        self._client = client

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, config: ClusterConfig | None = None, *, context: str | None = None) -> AsyncIterator[Self]:
        """Connect to a management cluster: of `config`, else of a context of the kubeconfig that kubectl would use.

        Raises KubeconfigError if there is none.
        """
        chosen = config if config is not None else ClusterConfig.default(context=context)
        async with Client(chosen, field_manager=_FIELD_MANAGER) as client:
            yield cls(client)

    @property
    def client(self) -> Client:
        """The client of the management cluster."""
        return self._client

    async def get(self, name: str) -> ControlPlane:
        """Read one. Raises NoControlPlane."""
        try:
            return read_as(ControlPlane, await self._client.get(_CONTROL_PLANES, name))
        except NotFound as error:
            raise self._missing(name, error) from error

    async def list(self) -> Sequence[ControlPlane]:
        """Read all, by name."""
        found = (await self._client.list(_CONTROL_PLANES)).items
        return sorted((read_as(ControlPlane, obj) for obj in found), key=lambda each: each.name)

    def watch(self, name: str | None = None) -> AsyncGenerator[Change[ControlPlane], None]:
        """Yield what there is, then each change, without an end; of one control plane, or of all."""
        return follow(self._client, ControlPlane, name=name)

    async def wait(self, name: str, until: Settled = ready, *, timeout_seconds: float = _WAIT_SECONDS) -> ControlPlane:
        """Wait until a control plane is there and `until` says yes. Raises NotSettled with what its conditions say."""
        last: ControlPlane | None = None
        try:
            async with asyncio.timeout(timeout_seconds), contextlib.aclosing(self.watch(name)) as changes:
                async for change in changes:
                    if change.type == "DELETED":
                        last = None
                        continue
                    last = change.object
                    if until(last):
                        return last
        except TimeoutError:
            raise NotSettled(f"{_told(name, last)}, after {timeout_seconds:g} s") from None
        raise AssertionError("a watch ended")

    async def wait_for_nodes(self, name: str, count: int, *, timeout_seconds: float = _WAIT_SECONDS) -> None:
        """Wait until a control plane has so many nodes that are Ready. Raises NotSettled."""
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
        """Tell whether control planes get the nodes that their annotation `FAKE_NODES_ANNOTATION` asks for."""
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
        """Create one, with `spec` as in a manifest. Raises AlreadyExists; with `wait`, returns when it can be used."""
        chosen: dict[str, Any] = dict(spec or {})
        if class_name is not None:
            chosen["classRef"] = {"name": class_name}
        if mode is not None:
            chosen["mode"] = str(ControlPlaneMode(mode))
        body = {"metadata": {"name": name, "annotations": dict(annotations or {})}, "spec": chosen}
        made = read_as(ControlPlane, await self._client.create(_CONTROL_PLANES, body))
        return await self.wait(name, timeout_seconds=timeout_seconds) if wait else made

    async def clone(self, original: str, name: str, **options: Any) -> ControlPlane:
        """Create one with the objects of another, and fresh identities; `options` are those of `create`."""
        return await self._from({"controlPlaneRef": {"name": original}, "clone": True}, name, **options)

    async def restore(
        self, snapshot: str, name: str, *, identity_secret: str, clone: bool = False, **options: Any
    ) -> ControlPlane:
        """Create one from a ControlPlaneSnapshot: the former one again, or a clone of it.

        `identity_secret` is a Secret beside the operator with the private key. `options` are those of `create`.
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
        """Adopt the API server of `config`, an administrator there; see `kplane.client.adoption.adopt`."""
        made = await adopt(self._client, name, config=config, namespace=namespace, external=external)
        return await self.wait(name, timeout_seconds=timeout_seconds) if wait else made

    async def delete(
        self,
        name: str,
        *,
        policy: DeletionPolicy | str | None = None,
        wait: bool = False,
        timeout_seconds: float = _WAIT_SECONDS,
    ) -> None:
        """Delete one; with its data, if the policy in force is Destroy. `policy` sets it. Raises NoControlPlane."""
        if policy is not None:
            await self._patch(name, {"spec": {"deletionPolicy": str(DeletionPolicy(policy))}})
        found = await self.get(name)
        try:
            await self._client.delete(_CONTROL_PLANES, name, uid=found.metadata.uid)
        except NotFound as error:
            raise self._missing(name, error) from error
        if wait:
            await self._wait_gone(found, timeout_seconds=timeout_seconds)

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
        """Create one that can be used, and destroy it with its data at the end; `options` are those of `create`."""
        options["spec"] = {"deletionPolicy": str(DeletionPolicy.DESTROY), **(options.get("spec") or {})}
        await self.create(name, **options)
        try:
            yield await self.wait(name)
        finally:
            with contextlib.suppress(NoControlPlane):
                await self.delete(name, wait=True)

    async def kubeconfig(self, name: str, *, internal: bool = False) -> str:
        """Return the administrator's kubeconfig: for people, or, with `internal`, for the management cluster's pods.

        Its credentials end; the Secret has others before that. Raises NoControlPlane, and NoKubeconfig if it has not
        published one yet, or if the Secret was lost.
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
        """Return that kubeconfig. If its Secret was lost, wait until the operator has written it again.

        A control plane that sleeps is woken for that only: while it sleeps, nobody can issue credentials. Raises
        NoControlPlane, NoKubeconfig if it was never published or is not back in time, and NotSettled.
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
        """Return that kubeconfig as a configuration for `kplane.provider.Client`."""
        return ClusterConfig.from_kubeconfig(await self.kubeconfig(name, internal=internal))

    @contextlib.asynccontextmanager
    async def tenant(
        self, name: str, *, internal: bool = False, timeout_seconds: float = _WAIT_SECONDS
    ) -> AsyncIterator[Client]:
        """Connect to the API of a control plane as its administrator; one that sleeps is woken first."""
        await self.ensure_awake(name, timeout_seconds=timeout_seconds)
        kubeconfig = await self.restored_kubeconfig(name, internal=internal, timeout_seconds=timeout_seconds)
        async with Client(ClusterConfig.from_kubeconfig(kubeconfig), field_manager=_FIELD_MANAGER) as client:
            yield client

    async def token(self, name: str, *, internal: bool = False, lifetime: timedelta | None = None) -> str:
        """Return a bearer token for the API of a control plane: the published one, or a new one of this lifetime.

        Raises ClientError if the control plane publishes a client certificate instead.
        """
        if lifetime is not None:
            async with self.tenant(name, internal=internal) as tenant:
                return await issue_token(tenant, seconds=round(lifetime.total_seconds()))
        published = (await self.config(name, internal=internal)).token
        if published is None:
            raise ClientError(f"{name} publishes a client certificate and no token; use its kubeconfig")
        return published

    async def events(self, name: str) -> Sequence[KubernetesEvent]:
        """Read the Events of a control plane and of what belongs to it, the latest last. Raises NoControlPlane."""
        return await ControlPlaneEvents(self._client, await self.get(name)).read()

    async def follow_events(self, name: str) -> AsyncGenerator[KubernetesEvent, None]:
        """Yield these Events, then each new one, without an end. Close it by `contextlib.aclosing`."""
        async with contextlib.aclosing(ControlPlaneEvents(self._client, await self.get(name)).follow()) as events:
            async for event in events:
                yield event

    async def move(self, name: str, *, mode: ControlPlaneMode | str, plan: bool = False) -> ControlPlane:
        """Ask for a move of the data to a home of another mode, or with `plan` for what it would take. Does not wait.

        The settings of that mode are those of the present or the former home, and those that a move set aside.
        """
        found, wanted = await self.get(name), ControlPlaneMode(mode)
        home = home_of_mode(found, wanted)
        return await self._patch(name, patch_for(found, mode=wanted, home=home, plan=plan))

    async def abort_move(self, name: str) -> ControlPlane:
        """Ask that the data stay in their present home, or that an intended move is given up. Does not wait."""
        found = await self.get(name)
        return await self._patch(name, patch_for(found, mode=found.home.mode, home=found.home, plan=False))

    async def roll_back(self, name: str) -> ControlPlane:
        """Ask that the data go back to their former home. Before the cut this aborts the move. Does not wait."""
        found = await self.get(name)
        home = former_home(found)
        return await self._patch(name, patch_for(found, mode=home.mode, home=home, plan=False))

    async def sleep(self, name: str, *, wait: bool = False, timeout_seconds: float = _WAIT_SECONDS) -> ControlPlane:
        """Ask that the API server ends until a client needs it; with `wait`, returns when it has ended.

        Raises ClientError as soon as it is known what keeps the control plane awake, and if a client wakes it at once.
        The request stays: the control plane sleeps when nothing keeps it awake any more.
        """
        asked = await self._annotate(name, SLEEP_REQUESTED_ANNOTATION, _now())
        return await self._wait_asleep(asked, timeout_seconds=timeout_seconds) if wait else asked

    async def _wait_asleep(self, asked: ControlPlane, *, timeout_seconds: float) -> ControlPlane:
        name, former = asked.name, answer(asked)

        def is_decided(control_plane: ControlPlane) -> bool:
            return asleep(control_plane) or obstacle(control_plane) is not None

        def is_decided_anew(control_plane: ControlPlane) -> bool:
            return asleep(control_plane) or obstacle(control_plane) not in {None, former}

        if former is None:
            found = await self.wait(name, is_decided, timeout_seconds=timeout_seconds)
        else:
            try:
                seconds = min(_ANSWER_SECONDS, timeout_seconds)
                found = await self.wait(name, is_decided_anew, timeout_seconds=seconds)
            except NotSettled:
                seconds = max(timeout_seconds - _ANSWER_SECONDS, _POLL_SECONDS)
                found = await self.wait(name, is_decided, timeout_seconds=seconds)
        if not asleep(found):
            raise ClientError(f"ControlPlane {name} does not sleep: {obstacle(found)}")
        with contextlib.suppress(NotSettled):
            woken = await self.wait(name, lambda each: not asleep(each), timeout_seconds=_SLEEP_HOLDS_SECONDS)
            raise ClientError(f"ControlPlane {name} slept and was woken again: {_told(name, woken)}")
        return found

    async def wake(self, name: str) -> ControlPlane:
        """Ask that the API server of one that sleeps starts."""
        return await self._annotate(name, WAKE_REQUESTED_ANNOTATION, _now())

    async def ensure_awake(self, name: str, *, timeout_seconds: float = _WAIT_SECONDS) -> None:
        """Wake one that sleeps, and wait for it; not every address wakes it by itself."""
        if asleep(await self.get(name)):
            await self.wake(name)
            await self.wait(name, awake, timeout_seconds=timeout_seconds)

    async def pause(self, name: str) -> ControlPlane:
        """Have the operator leave it as it is, its deletion included."""
        return await self._annotate(name, PAUSED_ANNOTATION, "true")

    async def resume(self, name: str) -> ControlPlane:
        """End a pause."""
        return await self._annotate(name, PAUSED_ANNOTATION, None)

    async def rotate(self, name: str) -> ControlPlane:
        """Have CAs and ServiceAccount key exchanged, step by step, while clients continue to work."""
        return await self._annotate(name, ROTATE_ANNOTATION, _now())

    async def register(
        self,
        name: str,
        *,
        services: tuple[str, ...] = ("controllers",),
        profile: ControllersProfile | str | None = None,
    ) -> ControlPlaneRegistration:
        """Have services run for a control plane, by a registration of its name, with controllers of this profile."""
        spec: dict[str, Any] = {"controlPlaneRef": {"name": name}, "services": list(services)}
        if profile is not None:
            spec["controllers"] = {"profile": str(ControllersProfile(profile))}
        body = {"metadata": {"name": name}, "spec": spec}
        return read_as(ControlPlaneRegistration, await self._client.apply(_REGISTRATIONS, body, force=True))

    async def unregister(self, name: str) -> None:
        """End what runs by the registration of this name; one that is gone already is fine."""
        with contextlib.suppress(NotFound):
            await self._client.delete(_REGISTRATIONS, name)

    async def registrations(self, of: str | None = None) -> Sequence[ControlPlaneRegistration]:
        """Read the registrations of a control plane, or all, by name."""
        selector = f"spec.controlPlaneRef.name={of}" if of is not None else None
        found = await self._client.list(_REGISTRATIONS, field_selector=selector)
        return sorted((read_as(ControlPlaneRegistration, obj) for obj in found.items), key=lambda each: each.name)

    async def snapshot(
        self, name: str, *, of: str, wait: bool = False, timeout_seconds: float = _WAIT_SECONDS
    ) -> ControlPlaneSnapshot:
        """Save the data and keys of a control plane; with `wait`, returns when they are saved.

        Raises ClientError as soon as the operator says that the snapshot waits for a person. It stays, and is made once
        what it waits for is there. Raises NoControlPlane if there is none of that name to save.
        """
        body = {"metadata": {"name": name}, "spec": {"controlPlaneRef": {"name": of}}}
        made = read_as(ControlPlaneSnapshot, await self._client.create(_SNAPSHOTS, body))
        if not wait:
            return made
        last = made
        try:
            changes = follow(self._client, ControlPlaneSnapshot, name=name)
            async with asyncio.timeout(timeout_seconds), contextlib.aclosing(changes):
                async for change in changes:
                    last = change.object
                    if change.type == "DELETED":
                        raise ClientError(f"ControlPlaneSnapshot {name} was deleted before it was complete")
                    if last.status.phase is SnapshotPhase.COMPLETED:
                        return last
                    await self._check_waiting(last)
        except TimeoutError:
            said = find_condition(last.status.conditions, READY)
            why = f": {said.message}" if said is not None else ""
            raise NotSettled(f"snapshot {name} is not complete after {timeout_seconds:g} s{why}") from None
        raise AssertionError("a watch ended")

    async def _check_waiting(self, snapshot: ControlPlaneSnapshot) -> None:
        """Raise ClientError if a snapshot waits for what does not come by itself."""
        ready = find_condition(snapshot.status.conditions, READY)
        if ready is None or ready.status == "True":
            return
        if ready.reason == _NOT_FOUND:
            # The operator may have seen the snapshot before a control plane that was created just now.
            await self.get(snapshot.spec.control_plane_ref.name)
        elif ready.reason in _WAITS_FOR_PERSON:
            raise ClientError(
                f"snapshot {snapshot.name} is not made ({ready.reason}): {ready.message}; the snapshot stays"
                f" and waits, to give it up: kplane backup delete {snapshot.name}"
            )

    async def delete_snapshot(self, name: str) -> None:
        """Ask for the deletion of a snapshot with its file. Raises `kplane.provider.NotFound`."""
        await self._client.delete(_SNAPSHOTS, name)

    async def snapshots(self, of: str | None = None) -> Sequence[ControlPlaneSnapshot]:
        """Read the snapshots of a control plane, or all, by name."""
        selector = f"spec.controlPlaneRef.name={of}" if of is not None else None
        found = await self._client.list(_SNAPSHOTS, field_selector=selector)
        return sorted((read_as(ControlPlaneSnapshot, obj) for obj in found.items), key=lambda each: each.name)

    async def _annotate(self, name: str, annotation: str, value: str | None) -> ControlPlane:
        return await self._patch(name, {"metadata": {"annotations": {annotation: value}}})

    async def _patch(self, name: str, body: dict[str, Any]) -> ControlPlane:
        try:
            return read_as(ControlPlane, await self._client.patch(_CONTROL_PLANES, name, body))
        except NotFound as error:
            raise self._missing(name, error) from error

    def _missing(self, name: str, error: NotFound) -> ClientError:
        if "name" not in error.details:
            # An API server that has the kind names the object.
            return ClientError(
                f"{self._client.config.server} has no kind ControlPlane: install kplane there, or choose another"
                " context"
            )
        return NoControlPlane(f"there is no ControlPlane {name}; see `kubectl get controlplanes`")


def _told(name: str, control_plane: ControlPlane | None) -> str:
    if control_plane is None:
        return f"ControlPlane {name} is not there"
    phase = control_plane.status.phase or ControlPlanePhase.PENDING
    said = find_condition(control_plane.status.conditions, READY)
    if said is not None and said.status == "True":
        # What is Ready may be awake although it should sleep, or asleep although it should wake.
        said = find_condition(control_plane.status.conditions, HIBERNATED)
    why = f" ({said.reason}: {said.message})" if said is not None else ""
    return f"ControlPlane {name} is {phase}{why}"


def _why_no_kubeconfig(control_plane: ControlPlane, *, key: str, is_lost: bool) -> str:
    name = control_plane.name
    told, secret = _told(name, control_plane), f"{management_namespace(name)}/{kubeconfig_secret_name(name)}"
    if control_plane.status.endpoint is None:
        return f"{told}: it has published no kubeconfig yet"
    if not is_lost:
        return f"{told}: its Secret {secret} has no key {key}; it is published for the other kind of client only"
    if asleep(control_plane):
        return f"{told}: its Secret {secret} is gone; the operator writes it again after a wake: kplane wake {name}"
    return f"{told}: its Secret {secret} is gone, and the operator has not written it again yet; try again in a minute"


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    return any(each["type"] == READY and each["status"] == "True" for each in conditions)


def _now() -> str:
    # With a fraction: a wake must be later than the sleep that began in the same second.
    return datetime.now(UTC).isoformat()
