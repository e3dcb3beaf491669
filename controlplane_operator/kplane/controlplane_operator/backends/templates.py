"""Templates of virtual control planes: made on request, and deleted when no class or control plane needs them.

Each version of Kubernetes has its own template, and so does each combination of the other properties of a fresh control
plane. Templates are in the shared etcd, and new control planes are copies of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn

from pydantic import ValidationError

from kplane.api import AuthSpec, ControlPlane, ControlPlaneClass
from kplane.api.reasons import Reason
from kplane.components.api_server import API_SERVER
from kplane.components.names import makes_template, template_name
from kplane.controlplane_operator.backends.template_making import MADE, TemplateMaker, Wanted, left_out
from kplane.controlplane_operator.backends.versions import ApiServerPlan
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.errors import OperatorError, TemplateFailed
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.access_control import AccessControl
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.backoff import jittered
from kplane.data import DataError, Original, Owner, Usage
from kplane.pki.errors import PkiError
from kplane.provider import ProviderError
from kplane.workloads import Runtime, WorkloadsError

__all__ = ["Templates"]

_log: Final = logging.getLogger(__name__)

_MAKING_SECONDS: Final = 120.0
"""Timeout in seconds to make a template; a bootstrap on a busy machine takes a tenth of it."""
_PATIENCE_SECONDS: Final = 180.0
"""Maximum wait of a control plane in seconds, even if other templates come first."""
_AGAIN_SECONDS: Final = 300.0
"""Time in seconds after a failure in which control planes are bootstrapped without a template."""
_PERIOD_SECONDS: Final = 600.0
"""Interval in seconds of the collection of old templates.

The first collection waits that long too, because users of a template may not be in the cache yet.
"""
_ENDING_SECONDS: Final = 5.0
"""Interval in seconds of further attempts to end the API server of a template."""


@dataclass(slots=True)
class _Asked:
    """Template that control planes wait for."""

    wanted: Wanted
    host: str
    """Control plane that requested the template first."""
    since: float = field(default_factory=time.monotonic)
    waiting: set[str] = field(default_factory=set)


class Templates:
    """Templates of one operator. Only the leading operator makes and deletes templates."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        runtime: Runtime,
        shared: SharedEtcd,
        access: AccessControl,
        makers: set[str],
        copied: Callable[[str, Usage], None] = lambda _uid, _usage: None,
    ) -> None:
        """Create the manager; `makers` has the components that make templates now, also in other data stores.

        `copied` is called with the uid of a control plane whose keys are a copy, and their size.
        """
        self._context = context
        self._told = copied
        self._runtime = runtime
        self._shared = shared
        self._makers = makers
        self._maker = TemplateMaker(runtime=runtime, shared=shared, access=access)
        self._known: dict[str, Original] = {}
        self._asked: dict[str, _Asked] = {}
        self._failed: dict[str, tuple[float, str]] = {}
        """Time of the next attempt and cause of the failure, by name of a failed template."""
        self._copies: dict[str, bool] = {}
        """Whether each control plane is a copy, by uid, until it is published."""
        self._news = asyncio.Event()

    async def copy(
        self,
        control_plane: ControlPlane,
        *,
        prefix: str,
        owner: Owner,
        user: str,
        plan: ApiServerPlan,
        service_cidr: str,
    ) -> bool:
        """Copy the keys of a new control plane from a template; return whether its keys are a copy.

        Returns False if the control plane has data, or starts without a template. The decision is final, and precedes
        the grant of rights to its user in etcd: from then on, its API server may write keys. Raises ConditionError
        (Provisioning) while the template is being made, and KeyspaceError.
        """
        if (decision := self._copies.get(owner.uid)) is not None:
            return decision
        keyspace = self._shared.keyspace
        original = None
        if not await keyspace.has_user(user) and await keyspace.lacks_data(prefix, owner=owner):
            original = await self.find(control_plane, plan=plan, service_cidr=service_cidr)
            if original is None:
                # The API server must begin without keys, not with a part of a copy.
                await keyspace.discard_unfinished(prefix, owner=owner)
        if original is not None:
            auth = plan.chosen.spec.auth if plan.chosen is not None else AuthSpec()
            without = left_out(auth)
            copied = await keyspace.clone(original, prefix, owner=owner, replaced=owner.uid, without=without)
            if copied:
                self._told(owner.uid, original.usage(prefix, without=without))
        else:
            copied = await keyspace.is_copy(prefix, owner=owner)
        self._copies[owner.uid] = copied
        return copied

    def forget(self, uid: str) -> None:
        """Discard whether the control plane with this uid is a copy, because it is published or gone."""
        self._copies.pop(uid, None)

    async def find(self, control_plane: ControlPlane, *, plan: ApiServerPlan, service_cidr: str) -> Original | None:
        """Return the template for a new control plane; None if no template can be made, with a warning Event.

        Also returns None if the version of the runtime is unknown. Raises ConditionError (Provisioning) while the
        template is being made, and KeyspaceError.
        """
        version = plan.version or await self._own_version()
        if version is None:
            return None
        properties = Wanted.of(plan.chosen, version=version, asked=plan.version, service_cidr=service_cidr)
        try:
            template = self._known.get(properties.name) or await self._maker.find(properties)
            if template is None:
                self._wait(control_plane, wanted=properties)
        except TemplateFailed as error:
            self._context.events.record(
                control_plane,
                reason="TemplateFailed",
                message=f"the control plane is bootstrapped by its own API server, because it has no template: {error}",
                warning=True,
            )
            return None
        self._known[properties.name] = template
        return template

    async def run(self) -> NoReturn:
        """Make requested templates, one after the other, and delete unused templates, until cancelled."""
        await self._runtime.synced()
        due = time.monotonic() + jittered(_PERIOD_SECONDS)
        while True:
            self._news.clear()
            for name in list(self._asked):
                await self._make(name)
            until = due if await self._end_makers() else time.monotonic() + _ENDING_SECONDS
            if time.monotonic() >= due:
                await self._collect_quietly()
                due = time.monotonic() + jittered(_PERIOD_SECONDS)
            if not self._asked:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, until - time.monotonic())):
                        await self._news.wait()

    async def collect(self) -> list[str]:
        """Delete templates that no class and no control plane requests; return their names. Raises OperatorError."""
        used, requested = await self._used(), set(self._asked)
        templates = await self._shared.keyspace.templates()
        # An incomplete template without a request was abandoned.
        unused = [
            name for name, owner in templates.items() if name not in (used if owner == MADE else requested) | requested
        ]
        for name in unused:
            await self._maker.discard(name)
            self._known.pop(name, None)
        return unused

    def _wait(self, control_plane: ControlPlane, *, wanted: Wanted) -> NoReturn:
        """Request a template, and raise ConditionError (Provisioning).

        Raises TemplateFailed if the template failed less than 300 s ago, or the request is older than 180 s.
        """
        until, why = self._failed.get(wanted.name, (0.0, ""))
        if time.monotonic() < until:
            raise TemplateFailed(why)
        request = self._asked.setdefault(wanted.name, _Asked(wanted, control_plane.name))
        if time.monotonic() - request.since > _PATIENCE_SECONDS:
            raise TemplateFailed(f"it is not there after {_PATIENCE_SECONDS:.0f} s")
        request.waiting.add(control_plane.name)
        self._news.set()
        raise ConditionError(
            Reason.PROVISIONING,
            f"waiting for template {wanted.name}, which the operator makes once for all control planes like this",
        )

    async def _make(self, name: str) -> None:
        request = self._asked[name]
        self._makers.add(maker := template_name(request.host))
        try:
            async with asyncio.timeout(_MAKING_SECONDS):
                await self._maker.make(request.wanted, host=request.host)
        except (OperatorError, PkiError, WorkloadsError, ProviderError, DataError, TimeoutError) as error:
            why = str(error) or f"it took more than {_MAKING_SECONDS:.0f} s"
            self._failed[name] = time.monotonic() + _AGAIN_SECONDS, why
            _log.warning("failed to make template %s: %s; again in %.0f s at the earliest", name, why, _AGAIN_SECONDS)
        else:
            self._failed.pop(name, None)
            _log.info("made template %s", name)
        finally:
            self._makers.discard(maker)
            del self._asked[name]
            for control_plane in request.waiting:
                self._context.triggers.control_planes.add(control_plane)

    async def _end_makers(self) -> bool:
        """Delete the API servers of templates, also those of an earlier operator; return whether all have ended."""
        ended = True
        for component in self._runtime.names():
            if makes_template(component) and component not in self._makers:
                try:
                    await self._runtime.delete(component)
                except WorkloadsError as error:
                    _log.info("%s has not ended yet: %s", component, error)
                    ended = False
        return ended

    async def _collect_quietly(self) -> None:
        try:
            for name in await self.collect():
                _log.info("deleted template %s, which is out of use", name)
        except (OperatorError, PkiError, WorkloadsError) as error:
            _log.warning("failed to collect templates that are out of use: %s", error)

    async def _used(self) -> set[str]:
        """Return the names of the templates that a new control plane could request."""
        classes: list[ControlPlaneClass | None] = [None]
        for obj in self._context.stores.classes:
            with contextlib.suppress(ValidationError):
                classes.append(ControlPlaneClass.model_validate(obj))
        versions_asked = {obj["spec"].get("version") for obj in self._context.stores.control_planes}
        versions_asked |= {named_class.spec.version for named_class in classes if named_class is not None}
        versions = {str(version).removeprefix("v") for version in versions_asked if version}
        own = await self._own_version()
        return {
            Wanted.of(named_class, version=version, asked=None).name
            for named_class in classes
            for version in versions | ({own} if own is not None else set())
        }

    async def _own_version(self) -> str | None:
        return await self._runtime.version(API_SERVER)
