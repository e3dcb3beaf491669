"""Programs of kplane as processes of this machine: those of `kplane up`, of the demo and of tests."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, Self

import aiohttp

from kplane.api import ControlPlaneRegistration, RegistrationMode
from kplane.cli.choices import DEMO_MARKER
from kplane.cli.programs.base import Log, Program, Replica
from kplane.cli.programs.files import FileLog
from kplane.components.names import mcm_name
from kplane.embedded import components
from kplane.embedded.errors import EmbeddedError
from kplane.embedded.handle import Handle
from kplane.mcm.describe.kinds import InstanceKind
from kplane.mcm.instance.memory import pss_by_pid
from kplane.provider import Unreachable
from kplane.workloads.processes.directory import ComponentDirectory
from kplane.workloads.processes.proctable import marked_processes, running_components

__all__ = ["Processes"]

_RUNTIME: Final = "runtime"
_COMPONENTS: Final = {
    Program.OPERATOR: components.OPERATOR,
    Program.MCM: components.MCM,
    Program.GATEWAY: components.GATEWAY,
    Program.ETCD: components.TENANTS_ETCD,
}
_HTTP: Final = "http"
_ASK_SECONDS: Final = 5.0


class Processes:
    """Reader of the files and processes of this user; see `kplane.cli.programs.base.Programs`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @classmethod
    def of(cls, server: str) -> Self | None:
        """Search for the management cluster of this machine with this API URL, by its processes.

        None if there is none.
        """
        for component in running_components():
            if component.name != components.API_SERVER or component.parent.name != _RUNTIME:
                continue
            try:
                handle = Handle.load(component.parent.parent)
            except (EmbeddedError, OSError):
                continue  # the cluster starts or ends at this moment
            if handle.server == server:
                return cls(handle)
        return None

    @property
    def place(self) -> str:
        """Description of the management cluster's directory."""
        return f"processes in {self._handle.directory}"

    @property
    def namespace(self) -> str | None:
        """None, because the programs are not pods."""
        return None

    @property
    def required(self) -> Sequence[Program]:
        """Programs that were started with the management cluster."""
        handle = self._handle
        started = {
            Program.OPERATOR: handle.operator_url,
            Program.MCM: handle.mcm_url,
            Program.GATEWAY: handle.gateway_url,
            Program.ETCD: handle.tenants_etcd_endpoint,
        }
        return [program for program, url in started.items() if url is not None]

    @property
    def start(self) -> str:
        """Command that starts the programs again."""
        if (self._handle.directory / DEMO_MARKER).exists():
            return f"kplane demo --directory {shlex.quote(str(self._handle.directory))}"
        where = f"--directory {shlex.quote(str(self._handle.directory))}"
        nodes = " --fake-nodes" if self._handle.fake_nodes else ""
        return f"kplane down {where} && kplane up {where}{nodes}"

    @property
    def upgrade(self) -> str:
        """The command of `start`, because it starts the programs of this package."""
        return self.start

    async def replicas(self) -> Sequence[Replica]:
        """Return the processes that were started, each with its readiness."""
        problems = await asyncio.gather(*(self._problem(program) for program in self.required))
        return [
            Replica(
                program=program,
                name=_COMPONENTS[program],
                problem=problem,
                version=version("kplane") if program is not Program.ETCD else "",
                look=f"tail -n 20 {shlex.quote(str(self._directory(program).log))}",
            )
            for program, problem in zip(self.required, problems, strict=True)
        ]

    async def _problem(self, program: Program) -> str:
        running = [process for process in marked_processes(self._directory(program).path) if process.program]
        if not running:
            return "its process does not run"
        if program is Program.ETCD:
            return ""  # the operator reports problems of etcd
        try:
            status, text = await self._get(program, "/readyz")
        except Unreachable as error:
            return str(error)
        return "" if status < 400 else " ".join(_failed_checks(text))

    async def ask(self, replica: Replica, path: str) -> str:
        """Return the answer of a process to a path."""
        status, text = await self._get(replica.program, path)
        if status >= 400:
            raise Unreachable(f"{replica.name} answered {status} to {path}: {text[:300]}", kind="protocol")
        return text

    async def _get(self, program: Program, path: str) -> tuple[int, str]:
        directory = self._directory(program)
        port = directory.read_ports().get(_HTTP)
        url = f"http://127.0.0.1:{port}{path}"
        timeout = aiohttp.ClientTimeout(total=_ASK_SECONDS)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
                return response.status, await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            cause = str(error) or "no answer in time"
            raise Unreachable(f"{directory.path.name} does not answer at {url}: {cause}", kind="connect") from error

    def log(self, replica: Replica) -> Log:
        """Return the log of a process."""
        return FileLog(replica.name, self._directory(replica.program).log)

    async def component_logs(self, component: str, *, namespace: str) -> Sequence[Log]:
        """Return the log of a component, even if the component does not run now."""
        del namespace
        return _existing(component, ComponentDirectory(self._handle.operator_directory / component))

    async def instance_logs(self, registration: ControlPlaneRegistration, *, kind: InstanceKind) -> Sequence[Log]:
        """Return the log of an instance, even if the instance does not run now."""
        directory = self._handle.mcm_directory
        if registration.spec.mode is RegistrationMode.DEDICATED:
            control_plane = registration.spec.control_plane_ref.name
            own = mcm_name(control_plane, uid=registration.metadata.uid or "")
            directory = ComponentDirectory(self._handle.operator_directory / own).scratch
        component = kind.component(registration.name)
        return _existing(component, ComponentDirectory(directory / component))

    async def memory(self) -> Mapping[str, int]:
        """Return the proportional set size of each component."""
        directory = self._handle.operator_directory
        return await asyncio.to_thread(_memory, directory)

    def _directory(self, program: Program) -> ComponentDirectory:
        return ComponentDirectory(self._handle.directory / _RUNTIME / _COMPONENTS[program])


def _existing(name: str, directory: ComponentDirectory) -> Sequence[Log]:
    return [FileLog(name, directory.log)] if directory.log.exists() else []


def _memory(directory: Path) -> Mapping[str, int]:
    """Return bytes by component of the operator.

    A process inside of a component, such as an instance of mcm, counts for it.
    """
    entries = marked_processes(directory)
    sizes = pss_by_pid(process.pid for process in entries)
    sizes_by_component: dict[str, int] = {}
    for process in entries:
        name = Path(process.marker).relative_to(directory.resolve()).parts[0]
        sizes_by_component[name] = sizes_by_component.get(name, 0) + sizes.get(process.pid, 0)
    return sizes_by_component


def _failed_checks(text: str) -> list[str]:
    """Return the lines of an answer of `/readyz`, without the checks that passed and the summary."""
    lines = text.splitlines()
    return [line for line in lines if not line.startswith("[+]") and not line.endswith(" check failed")]
