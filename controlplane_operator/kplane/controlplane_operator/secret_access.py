"""The operator's right to Secrets, limited to single namespaces.

In each namespace of a control plane, the operator binds a ClusterRole to itself, and restores a binding that a user
deletes or changes. The installation binds the role in the operator's own namespace and in that of the gateway. Other
namespaces are opened by their owners.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any, Final, NoReturn

from kplane.api import SecretReference
from kplane.api.names import GROUP, management_namespace
from kplane.api.reasons import Reason
from kplane.controlplane_operator.grants import RBAC, Account, create_rbac, is_as_written
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.backoff import jittered, retry_backoff
from kplane.controlplane_operator.watch.cache import Change, Key, Object
from kplane.controlplane_operator.watch.secrets import (
    FOR_ENDPOINTS,
    FOR_REGISTRATIONS,
    OWN,
    SecretWatches,
    Wanted,
    Watched,
    is_managed_namespace,
    listen,
    sleeps,
)
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client, ClusterNotReady, Event, Informer, NotFound, ProviderError, Resource
from kplane.provider.client.resources import ROLE_BINDINGS
from kplane.provider.controllers.queue import FairQueue
from kplane.provider.controllers.rate_limiter import ItemBackoff
from kplane.provider.controllers.workers import Controller
from kplane.provider.errors import Forbidden
from kplane.workloads.pods import is_leaving

__all__ = ["DEFAULT_SECRETS_ROLE", "SecretAccess"]

_log: Final = logging.getLogger(__name__)

DEFAULT_SECRETS_ROLE: Final = "kplane-controlplane-operator-secrets"
"""Name of the ClusterRole in `deploy/rbac`."""

_SELF_REVIEWS: Final = Resource("authentication.k8s.io/v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False)
_LABEL: Final = f"{GROUP}/operator-access"
"""Label with value `secrets` of the RoleBindings by which the operator may use the Secrets of a namespace."""
_ACCOUNT: Final = "system:serviceaccount:"
_RESTORED_SECONDS: Final = 1.0
"""Delay before a changed binding is restored, so that two controllers that overwrite each other cost little."""
_KNOWN_SECONDS: Final = 5.0
_COMPARE_SECONDS: Final = 60.0
_WORKERS: Final = 8
_OPENED_AT_ONCE: Final = 64


class SecretAccess:
    """Binds the role, and watches the Secrets of each namespace that the operator may read."""

    def __init__(
        self,
        client: Client,
        *,
        stores: Stores,
        namespace: str,
        role: str = DEFAULT_SECRETS_ROLE,
        gateway_namespace: str | None = None,
    ) -> None:
        """Create the manager.

        `namespace` is the operator's own, and `role` is the ClusterRole. `gateway_namespace` is None without a gateway.
        """
        self.synced: Final = asyncio.Event()
        """Set once the cache has the Secrets of the operator's namespace, and readable ones of control planes."""
        self._identified = asyncio.Event()
        self._client = client
        self._stores = stores
        self._namespace = namespace
        self._installed: Final = frozenset(name for name in (namespace, gateway_namespace) if name is not None)
        """Namespaces in which the installation binds the role."""
        self._role = role
        self._subject: dict[str, Any] | None = None
        self._bound: dict[str, bool] = {}
        """Whether the binding of each management namespace equals the operator's version, as far as known."""
        self._changed = asyncio.Event()
        self._stale: set[Watched] = set()
        """Watches to be started or stopped."""
        self._turned: set[str] = set()
        """Namespaces of control planes that fell asleep or woke."""
        self._bindings = Informer(client, ROLE_BINDINGS, label_selector=_LABEL)
        self._queue: FairQueue[Key] = FairQueue(rate_limiter=ItemBackoff(maximum_seconds=30.0))
        self._watches = SecretWatches(
            client,
            {
                OWN: stores.secrets,
                FOR_REGISTRATIONS: stores.allowed_secrets,
                FOR_ENDPOINTS: stores.endpoint_secrets,
            },
            asleep=functools.partial(sleeps, stores),
        )
        client.observe_writes(self._watches.observe)

    async def run(self, *, listed: asyncio.Event) -> NoReturn:
        """Bind the role and watch Secrets until cancelled. `listed` is set once the stores of all kinds are filled."""
        self._subject = await self._who_am_i()
        self._identified.set()
        desired = Wanted(self._stores, installed=self._installed, bound=self._bound, changed=self._change)
        listen(self._stores, self._turn)
        self._stores.namespaces.listen(self._namespace_changed)
        controller = Controller("secretaccess", self._reconcile, queue=self._queue, workers=_WORKERS)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watches.run(), name="compare Secrets")
            group.create_task(self._bindings.run(self._seen), name="follow RoleBindings for Secrets")
            group.create_task(self._await_all(listed), name="wait for Secrets")
            await self._bindings.wait_synced()
            self._stores.namespaces.replay(self._namespace_changed)
            group.create_task(controller.run(), name="secretaccess controller")
            while True:
                while self._stale:
                    watched = self._stale.pop()
                    if watched in desired:
                        self._watches.start(watched)
                    else:
                        await self._watches.stop(watched)
                while self._turned:
                    await self._watches.turn(Watched(self._turned.pop(), OWN))
                try:
                    async with asyncio.timeout(jittered(_COMPARE_SECONDS)):
                        await self._changed.wait()
                except TimeoutError:
                    # A watch that a reconcile started may be for a namespace that the cache has never contained.
                    self._stale |= self._watches.watched()
                self._changed.clear()

    def problem(self) -> str | None:
        """Return why the operator is not ready, for /readyz; None if it is."""
        if self.synced.is_set():
            return None
        error = self._watches.error(Watched(self._namespace, OWN))
        return f"the Secrets of namespace {self._namespace} were not listed yet{f': {error}' if error else ''}"

    async def open(self, namespace: str) -> None:
        """Get access to the Secrets of a management namespace, or of that of the gateway, and wait for their cache.

        Raises ConditionError (SecretsNotReadable) if the Secrets are not in the cache after 5 s.
        """
        watched = Watched(namespace, OWN)
        await self._identified.wait()
        if namespace not in self._installed and not self._bound.get(namespace):
            await self._bind(namespace)
        if self._watches.is_known(watched):
            return
        try:
            async with asyncio.timeout(_KNOWN_SECONDS):
                await self._watches.known(watched)
        except (TimeoutError, ClusterNotReady):
            why = self._watches.error(watched) or "no answer yet"
            message = f"the operator cannot read the Secrets of namespace {namespace}: {why}"
            if namespace in self._installed:
                message += f"; {self._how_to_open(namespace, role=self._role)}"
            raise ConditionError(Reason.SECRETS_NOT_READABLE, message) from None

    def is_lost(self, namespace: str) -> bool:
        """Return whether a user's namespace is watched, and its Secrets are unreadable at present."""
        return any(self._watches.is_lost(Watched(namespace, label)) for label in (FOR_ENDPOINTS, FOR_REGISTRATIONS))

    async def forbidden(self, secret: SecretReference, error: Forbidden) -> ConditionError | None:
        """Return the error for a Secret that the operator may not read, with the remedy.

        Returns None if the namespace does not exist.
        """
        if await is_leaving(self._client, secret.namespace):
            return None
        message = f"the operator may not read Secret {secret.namespace}/{secret.name}"
        if is_managed_namespace(secret.namespace):
            return ConditionError(Reason.SECRETS_NOT_READABLE, f"{message}: {error}")
        return ConditionError(
            Reason.SECRETS_NOT_READABLE,
            f"{message}; {self._how_to_open(secret.namespace, role=f'{self._role}-reader')}",
        )

    def _how_to_open(self, namespace: str, *, role: str) -> str:
        return (
            f"to let it read the Secrets of that namespace, run: kubectl create rolebinding {role}"
            f" --namespace={namespace} --clusterrole={role} {self._account()}"
        )

    def _account(self) -> str:
        subject = self._subject or {}
        if subject.get("kind") == "ServiceAccount":
            return f"--serviceaccount={subject['namespace']}:{subject['name']}"
        return f"--user={subject.get('name', 'NAME')}"

    async def _who_am_i(self) -> dict[str, Any]:
        """Return the subject of the bindings: the user as which the API server authenticates the operator."""
        backoff = retry_backoff()
        while True:
            try:
                review = await self._client.create(_SELF_REVIEWS, {"metadata": {}})
            except ProviderError as error:
                pause = backoff.next_delay()
                _log.warning("failed to ask the API server for the operator's user: %s; retry in %.1f s", error, pause)
                await asyncio.sleep(pause)
                continue
            user: str = review["status"]["userInfo"]["username"]
            if user.startswith(_ACCOUNT):
                namespace, _, name = user.removeprefix(_ACCOUNT).partition(":")
                return Account(namespace, name).subject()
            return {"kind": "User", "apiGroup": RBAC, "name": user}

    async def _await_all(self, listed: asyncio.Event) -> None:
        """Set `synced` after the caches are filled. An unreadable namespace delays this by 5 s at most."""
        await self._watches.known(Watched(self._namespace, OWN))
        await self._bindings.wait_synced()
        await listed.wait()
        present = {obj["metadata"]["name"] for obj in self._stores.namespaces}
        slots = asyncio.Semaphore(_OPENED_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for obj in self._stores.control_planes:
                if (namespace := management_namespace(obj["metadata"]["name"])) in present:
                    group.create_task(self._try_to_open(namespace, slots), name=f"open {namespace}")
        self.synced.set()

    async def _try_to_open(self, namespace: str, slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                await self.open(namespace)
            except (ConditionError, ProviderError) as error:
                _log.warning("failed to open namespace %s: %s; its control plane retries", namespace, error)

    def _change(self, watched: Watched) -> None:
        self._stale.add(watched)
        self._changed.set()

    def _turn(self, namespace: str) -> None:
        self._turned.add(namespace)
        self._changed.set()

    def _namespace_changed(self, change: Change) -> None:
        # `open` binds the role in a new namespace when its control plane is reconciled.
        self._queue.add_after(change.key, _RESTORED_SECONDS if change.old is None else 0.0)

    def _seen(self, event: Event) -> None:
        """Process a change of a binding. A binding that the operator wrote itself counts as whole."""
        namespace, name = event.entry.key
        if name != self._role:
            return
        whole = event.kind != "DELETED" and is_as_written(event.object, self._body(namespace))
        if whole:
            self._bound[namespace] = True
            self._change(Watched(namespace, OWN))
        else:
            # The watch continues: either the binding is restored in a moment, or the namespace is being deleted.
            self._bound[namespace] = False
            self._queue.add_after(("", namespace), _RESTORED_SECONDS)

    async def _reconcile(self, key: Key) -> None:
        namespace = key[1]
        obj = self._stores.namespaces.get(key)
        if obj is None or not is_managed_namespace(namespace):
            self._bound.pop(namespace, None)
            self._change(Watched(namespace, OWN))
        elif "deletionTimestamp" not in obj["metadata"] and not self._bound.get(namespace):
            await self._bind(namespace)

    async def _bind(self, namespace: str) -> None:
        try:
            await create_rbac(self._client, ROLE_BINDINGS, self._body(namespace))
        except NotFound:
            return  # the namespace is gone
        self._bound[namespace] = True
        self._change(Watched(namespace, OWN))

    def _body(self, namespace: str) -> Object:
        return {
            "metadata": {"name": self._role, "namespace": namespace, "labels": {_LABEL: "secrets"}},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": self._role},
            "subjects": [self._subject],
        }
