"""Support bundle: data for the diagnosis of a problem, without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import platform
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from kplane.api.names import CONTROL_PLANE_LABEL, GATEWAY_NAMESPACE
from kplane.cli.doctor import examine
from kplane.cli.doctor.survey import KINDS, Survey, look
from kplane.cli.installation import NAMESPACE
from kplane.cli.kubeconfigs import Management
from kplane.cli.printable import printable_lines
from kplane.cli.programs import Program, Programs, Replica
from kplane.cli.scrubbing import scrub_object, scrub_text
from kplane.client.watching import served
from kplane.provider import Client, ProviderError, Resource
from kplane.provider.client.resources import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, LEASES, NAMESPACES, PODS

__all__ = ["Bundle", "collect", "covered"]

_LOG_LINES: Final = 5000
_EVENTS_NAMESPACE: Final = "default"
"""Namespace of the Events of cluster-scoped objects."""
_POD_PARTS: Final = ("metadata", "status")
"""Fields of a pod in the bundle. The spec is left out, because its environment may have secrets."""
_PATHS: Final[Mapping[Program, Sequence[str]]] = {
    Program.OPERATOR: ("/readyz?verbose", "/metrics"),
    Program.MCM: ("/readyz?verbose", "/clusters", "/metrics"),
    Program.GATEWAY: ("/readyz", "/metrics"),
    Program.ETCD: (),
}


@dataclass(slots=True)
class Bundle:
    """Files by name. Text and objects are scrubbed when they are added."""

    files: dict[str, str] = field(default_factory=dict)

    def add_text(self, name: str, text: str) -> None:
        """Add a text."""
        self.files[name] = printable_lines(scrub_text(text))

    def add_json(self, name: str, content: Any) -> None:
        """Add an object, or a list of objects."""
        self.files[f"{name}.json"] = json.dumps(scrub_object(content), indent=1, sort_keys=True) + "\n"

    @contextlib.asynccontextmanager
    async def part(self, name: str) -> AsyncIterator[None]:
        """Replace a part that cannot be read by a file with the reason."""
        try:
            yield
        except (ProviderError, OSError, ValueError, LookupError) as error:
            self.add_text(f"{name}.failed.txt", f"{type(error).__name__}: {error}\n")

    def write(self, path: Path) -> None:
        """Write a tar.gz that only this user may read. Raises OSError, also if the file exists."""
        root = path.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
        with path.open("xb") as file:
            path.chmod(0o600)
            with tarfile.open(fileobj=file, mode="w:gz") as archive:
                for name, text in sorted(self.files.items()):
                    content = text.encode()
                    entry = tarfile.TarInfo(f"{root}/{name}")
                    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
                    archive.addfile(entry, io.BytesIO(content))


async def collect(client: Client, *, cluster: Management | None = None, report: Callable[[str], None]) -> Bundle:
    """Collect all parts. A part that cannot be read does not affect the others. Secrets are never read.

    Raises Unreachable if the API server does not answer.
    """
    bundle = Bundle()
    survey = await look(client, cluster=cluster)
    steps: Sequence[tuple[str, Callable[[Bundle, Survey], Awaitable[None]]]] = (
        ("versions", _versions),
        ("findings", _findings),
        ("objects", _objects),
        ("events and pods", _namespaced),
        ("programs", _programs),
    )
    for name, step in steps:
        report(f"reading {name} ...")
        async with bundle.part(name.replace(" ", "-")):
            await step(bundle, survey)
    return bundle


async def _versions(bundle: Bundle, survey: Survey) -> None:
    bundle.add_json(
        "versions",
        {
            "kplane": version("kplane"),
            "python": sys.version,
            "platform": platform.platform(),
            "server": survey.client.config.server,
            "kubernetes": await survey.client.request("GET", "/version"),
            "programs": survey.programs.place if survey.programs is not None else "not found",
            "clock": f"the API server is {survey.ahead.total_seconds():+.1f} s ahead of this machine",
        },
    )


async def _findings(bundle: Bundle, survey: Survey) -> None:
    bundle.add_json("doctor", (await examine(survey)).to_json())


async def _objects(bundle: Bundle, survey: Survey) -> None:
    for kind in KINDS:
        await _list(bundle, survey.client, served(kind.resource))
    names = covered(survey)
    await _list(bundle, survey.client, LEASES, keep=lambda each: each["metadata"]["namespace"] in names)
    await _list(bundle, survey.client, NAMESPACES, keep=lambda each: each["metadata"]["name"] in names)
    # Only the names and metadata, because the content of the definitions is the same in each installation.
    async with bundle.part("objects/customresourcedefinitions"):
        definitions = (await survey.client.list(CUSTOM_RESOURCE_DEFINITIONS, metadata_only=True)).items
        ours = [definition for definition in definitions if definition["metadata"]["name"].endswith("kplane.dev")]
        bundle.add_json("objects/customresourcedefinitions", ours)


async def _list(
    bundle: Bundle, client: Client, resource: Resource, *, keep: Callable[[dict[str, Any]], bool] | None = None
) -> None:
    name = f"objects/{resource.plural}"
    async with bundle.part(name):
        bundle.add_json(name, [item for item in (await client.list(resource)).items if keep is None or keep(item)])


def covered(survey: Survey) -> set[str]:
    """Return the namespaces of kplane and its control planes. Other namespaces of the cluster are left out."""
    own = survey.programs.namespace if survey.programs is not None else None
    names = {own or NAMESPACE, _EVENTS_NAMESPACE, GATEWAY_NAMESPACE, *survey.owners}
    if not survey.namespaces:
        return names
    present = [metadata["metadata"] for metadata in survey.namespaces]
    # The remains of deleted control planes have their label.
    return {
        metadata["name"]
        for metadata in present
        if metadata["name"] in names or CONTROL_PLANE_LABEL in (metadata.get("labels") or {})
    }


async def _namespaced(bundle: Bundle, survey: Survey) -> None:
    for namespace in sorted(covered(survey)):
        async with bundle.part(f"events/{namespace}"):
            if items := (await survey.client.list(EVENTS, namespace=namespace)).items:
                bundle.add_json(f"events/{namespace}", items)
        async with bundle.part(f"pods/{namespace}"):
            if items := (await survey.client.list(PODS, namespace=namespace)).items:
                pods = [{part: item.get(part) for part in _POD_PARTS} for item in items]
                bundle.add_json(f"pods/{namespace}", pods)


async def _programs(bundle: Bundle, survey: Survey) -> None:
    if survey.programs is None:
        return
    replicas = await survey.programs.replicas()
    await asyncio.gather(*(_replica(bundle, survey.programs, replica) for replica in replicas))


async def _replica(bundle: Bundle, programs: Programs, replica: Replica) -> None:
    base = f"programs/{replica.name}"
    async with bundle.part(f"{base}/log"):
        log = contextlib.aclosing(programs.log(replica).lines(last=_LOG_LINES, follow=False))
        async with log as lines:
            bundle.add_text(f"{base}/log.txt", "".join([f"{line}\n" async for line in lines]))
    for path in _PATHS[replica.program]:
        name = f"{base}/{path.strip('/').partition('?')[0]}"
        async with bundle.part(name):
            bundle.add_text(f"{name}.txt", await programs.ask(replica, path))
