"""Logs of the programs of a control plane."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from kplane.api import ControlPlane, ControlPlaneMode, ControlPlaneRegistration, Service
from kplane.api.names import management_namespace
from kplane.cli.choices import Part
from kplane.cli.errors import Refused
from kplane.cli.programs.base import Log, Programs
from kplane.client import ControlPlanes
from kplane.components.names import MOST_ETCD_MEMBERS, apiserver_name, etcd_name
from kplane.mcm.describe.kinds import InstanceKind

__all__ = ["find_logs", "merged"]


_SERVICES = {
    Part.CONTROLLERS: (Service.CONTROLLERS, InstanceKind.CONTROLLERS),
    Part.SCHEDULER: (Service.SCHEDULER, InstanceKind.SCHEDULER),
}


async def find_logs(control_planes: ControlPlanes, programs: Programs | None, name: str, *, of: Part) -> Sequence[Log]:
    """Return the logs of a part of a control plane. Raises Refused if there is no such part, or it is not readable."""
    control_plane = await control_planes.get(name)
    if programs is None:
        raise Refused(
            f"the programs of {control_planes.client.config.server} are no pods there, and no processes of yours on"
            " this machine; run this on the machine and as the user that started them"
        )
    if of in _SERVICES:
        service, kind = _SERVICES[of]
        registration = _registration_for(await control_planes.registrations(name), service, name=name)
        logs = await programs.instance_logs(registration, kind=kind)
        missing = f"no instance of {registration.name} has run yet; see `kplane describe {name}`"
    else:
        components = _components(control_plane, of)
        namespace = management_namespace(name)
        logs = [
            log for component in components for log in await programs.component_logs(component, namespace=namespace)
        ]
        missing = _missing(control_plane, of)
    if not logs:
        raise Refused(missing)
    return logs


def _registration_for(
    registrations: Sequence[ControlPlaneRegistration], service: Service, *, name: str
) -> ControlPlaneRegistration:
    """Return the registration whose instance provides a service, or the first that requests the service."""
    asking = [registration for registration in registrations if service in registration.status.services]
    providing = [
        registration
        for registration in asking
        if registration.status.instance and service in registration.status.instance.services
    ]
    if not asking:
        raise Refused(f"no registration runs {service} for {name}: kplane register {name} --service {service.lower()}")
    return (providing or asking)[0]


def _components(found: ControlPlane, of: Part) -> Sequence[str]:
    """Return the components of a part. Raises Refused if kplane does not run the part for this control plane alone."""
    name, home = found.name, found.home
    if found.spec.endpoint_ref is not None:
        raise Refused(
            f"kplane does not run the {of} of {name}; its logs are where ControlPlaneEndpoint"
            f" {found.spec.endpoint_ref.name} leads to"
        )
    if of is Part.API_SERVER:
        return [apiserver_name(name, slot=home.slot)]
    if home.mode is ControlPlaneMode.VIRTUAL:
        raise Refused(
            f"{name} has no etcd of its own: its data are in the shared etcd, whose logs are those of all;"
            f" to give it one: kplane move {name} --to Dedicated"
        )
    return [etcd_name(name, member, slot=home.slot) for member in range(MOST_ETCD_MEMBERS)]


def _missing(found: ControlPlane, of: Part) -> str:
    if found.status.hibernation is not None:
        return f"{found.name} sleeps, and its {of} does not run: kplane wake {found.name}"
    return f"the {of} of {found.name} does not run; see `kplane describe {found.name}`"


async def merged(logs: Sequence[Log], *, last: int | None, follow: bool) -> AsyncGenerator[str, None]:
    """Yield the lines of all logs. If there are several logs, each line begins with the name of its log.

    Without `follow` the logs are printed one after the other.
    """
    if not follow:
        for log in logs:
            async with contextlib.aclosing(log.lines(last=last, follow=False)) as lines:
                async for line in lines:
                    yield _titled(log, line, logs)
        return
    queue: asyncio.Queue[_Said] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(log, queue, last=last), name=f"follow {log.name}") for log in logs]
    try:
        running = len(tasks)
        while running:
            message = await queue.get()
            if message.error is not None:
                raise message.error
            if message.line is None:
                running -= 1
            else:
                yield _titled(message.log, message.line, logs)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Said(NamedTuple):
    """Message of a log's task: a line, an error, or the end of the log."""

    log: Log
    line: str | None = None
    error: Exception | None = None


async def _pump(log: Log, queue: asyncio.Queue[_Said], *, last: int | None) -> None:
    try:
        async with contextlib.aclosing(log.lines(last=last, follow=True)) as lines:
            async for line in lines:
                queue.put_nowait(_Said(log, line))
    except Exception as error:  # noqa: BLE001 - the reader raises it
        queue.put_nowait(_Said(log, error=error))
    else:
        queue.put_nowait(_Said(log))


def _titled(log: Log, line: str, logs: Sequence[Log]) -> str:
    return line if len(logs) == 1 else f"[{log.name}] {line}"
