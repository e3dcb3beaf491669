"""Description of a control plane as a tree of its parts, with the important message and a helpful command."""

from __future__ import annotations

from kplane.api import READY, RUNNING, ControlPlane, ControlPlaneRegistration, find_condition, is_true
from kplane.api.conditions import LEASES_UNGUARDED, MIGRATING, PAUSED, UP_TO_DATE
from kplane.cli.advice import addressed, command_for
from kplane.cli.kubeconfigs import Management
from kplane.cli.output import age
from kplane.cli.printable import printable
from kplane.client import ControlPlanes

__all__ = ["describe_control_plane"]


async def describe_control_plane(control_planes: ControlPlanes, name: str, *, cluster: Management) -> list[str]:
    """Return the lines to print, with commands for `cluster`. Raises the errors of `ControlPlanes.get`."""
    control_plane = await control_planes.get(name)
    registrations = await control_planes.registrations(name)
    snapshots = await control_planes.snapshots(name)
    lines = [f"{name}  {control_plane.status.phase or 'Pending'}  {age(control_plane.metadata.creation_timestamp)}"]
    branches = [*_own(control_plane), *(_registration(line) for line in registrations)]
    if not registrations:
        register = addressed(f"kplane register {name}", cluster=cluster)
        branches.append(f"registration  none: no controllers run; {register}")
    branches.append(f"snapshots     {len(snapshots)}" + (f", newest {snapshots[-1].name}" if snapshots else ""))
    lines += [f"├─ {line}" for line in branches[:-1]]
    lines.append(f"└─ {branches[-1]}")
    # Escape line feeds, because a line feed in a message would add a false line to the description.
    return [printable(line) for line in (*lines, *_why(control_plane, cluster=cluster))]


def _own(found: ControlPlane) -> list[str]:
    status, spec = found.status, found.spec
    branches = [
        f"class         {spec.class_ref.name if spec.class_ref is not None else 'none: the defaults of kplane'}"
    ]
    home = str(found.home.mode)
    if spec.endpoint_ref is not None:
        home = f"not run by kplane: ControlPlaneEndpoint {spec.endpoint_ref.name}"
    elif status.storage is not None:
        home += f", {status.storage.keys} keys, {status.storage.bytes >> 10} KiB when last measured"
    branches.append(f"data          {home}")
    branches.append(f"API server    {_api_server(found)}")
    branches += [f"{endpoint.type.lower():<12}  {endpoint.url}" for endpoint in status.endpoints]
    secret = status.kubeconfig_secret_ref
    if secret is not None:
        ends = status.credentials_expire_at
        until = f", valid until {ends:%Y-%m-%d %H:%M} UTC" if ends is not None else ""
        branches.append(f"kubeconfig    Secret {secret.namespace}/{secret.name}{until}")
    if status.migration is not None and status.migration.step is not None:
        moving = status.migration
        branches.append(
            f"migration     {moving.step}, {moving.percent} %" + (f": {moving.message}" if moving.message else "")
        )
    return branches


def _api_server(found: ControlPlane) -> str:
    version = found.status.version or "version not known yet"
    hibernation = found.status.hibernation
    if hibernation is None:
        return version
    wakes = f", wakes at {hibernation.next_wake:%Y-%m-%d %H:%M} UTC" if hibernation.next_wake is not None else ""
    return f"{version}, asleep since {age(hibernation.since)} ({hibernation.reason}){wakes}; its first request wakes it"


def _registration(found: ControlPlaneRegistration) -> str:
    services = ", ".join(str(service) for service in found.status.services) or "none"
    running = find_condition(found.status.conditions, RUNNING)
    ready = find_condition(found.status.conditions, READY)
    state = f"running is {running.status}" if running is not None else "not running"
    failing = next((service for service in (ready, running) if service is not None and service.status != "True"), None)
    return f"registration  {found.name}: {services}, {state}" + (f" ({failing.message})" if failing is not None else "")


def _why(found: ControlPlane, *, cluster: Management) -> list[str]:
    """Return lines about each problem and its remedy; empty without problems."""
    lines = []
    ready = find_condition(found.status.conditions, READY)
    if ready is not None and ready.status != "True":
        lines.append(f"not ready: {ready.message} ({ready.reason})")
        if (command := command_for(ready.reason, name=found.name)) is not None:
            lines.append(f"next:      {addressed(command, cluster=cluster)}")
    if ready is None:
        lines.append("not ready: no operator has seen it yet")
        lines.append(f"next:      {addressed('kplane doctor', cluster=cluster)}")
    if is_true(found.status.conditions, PAUSED):
        resume = addressed(f"kplane resume {found.name}", cluster=cluster)
        lines.append(f"paused: the operator leaves it as it is; {resume}")
    for name in (UP_TO_DATE, MIGRATING, LEASES_UNGUARDED):
        condition = find_condition(found.status.conditions, name)
        if condition is not None and condition.status == "False":
            lines.append(f"{name}: {condition.message} ({condition.reason})")
    return lines
