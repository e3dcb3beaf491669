"""Projects of Milo on a real API server, reached through a front that takes their path away."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl

import aiohttp
import pytest
from aiohttp import web

from kplane.provider import ClusterConfig, ClusterNotFound, Informer, Manager
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.client.tls import ssl_context
from kplane.provider.fleet.clusters import Clusters
from kplane.provider.providers.milo import PROJECT_CONTROL_PLANES, PROJECTS, MiloProvider

pytestmark = pytest.mark.integration

PATH = re.compile(r"/apis/resourcemanager\.miloapis\.com/v1alpha1/projects/([^/]+)/control-plane(/.*)")


class Front:
    """The API server of Milo. Serves each project below its path, and never answers projects in `silent`."""

    def __init__(self, backend):
        self.backend = backend
        self.config = None
        self.runner = None
        self.opened = set()
        self.asked = []
        self.silent = set()

    @property
    def connections(self):
        return len(self.runner.server.connections)

    @contextlib.asynccontextmanager
    async def run(self, directory, authority, token):
        issued = authority.issue()
        (directory / "front.pem").write_bytes(issued.certificate + issued.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "front.pem")
        connector = aiohttp.TCPConnector(ssl=ssl_context(self.backend))
        async with aiohttp.ClientSession(connector=connector) as self.session:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", self._serve)
            self.runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
            await self.runner.setup()
            site = web.TCPSite(self.runner, "127.0.0.1", 0, ssl_context=context)
            await site.start()
            port = site._server.sockets[0].getsockname()[1]
            # The provider replaces this path.
            self.config = ClusterConfig(f"https://127.0.0.1:{port}/base", ca_data=authority.pem, token=token)
            try:
                yield self
            finally:
                await self.runner.cleanup()

    async def _serve(self, request):
        self.opened.add(request.transport.get_extra_info("peername"))
        self.asked.append(request.path)
        found = PATH.fullmatch(request.raw_path)
        if found is None or found[1] in self.silent:
            await asyncio.Event().wait()
        headers = {"Authorization": request.headers["Authorization"], "Accept": request.headers["Accept"]}
        async with self.session.request(request.method, f"{self.backend.server}{found[2]}", headers=headers) as answer:
            response = web.StreamResponse(status=answer.status)
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            return response


@pytest.fixture
async def front(client, tools, tmp_path, service_account):
    limited = await service_account(
        [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]
    )
    async with Front(client.config).run(tmp_path, tools.Authority(), limited.token) as front:
        yield front


class Milo:
    """Writes the objects that users and controllers of Milo write."""

    def __init__(self, client, namespace, resource):
        self.client, self.namespace, self.resource = client, namespace, resource
        self.selector = f"test={namespace}"

    def name(self, name):
        return f"{name}-{self.namespace}"

    async def create(self, name, *, ready=None, labels=None):
        labels = {"test": self.namespace, **(labels or {})}
        await self.client.create(self.resource, {"metadata": {"name": self.name(name), "labels": labels}})
        if ready is not None:
            await self.ready(name, ready)

    async def ready(self, name, status):
        kind = "Ready" if self.resource is PROJECTS else "ControlPlaneReady"
        conditions = [{"type": "Other", "status": "True"}, {"type": kind, "status": status}]
        body = {"status": {"conditions": conditions}}
        await self.client.patch(self.resource, self.name(name), body, subresource="status")

    async def delete(self, name):
        await self.client.delete(self.resource, self.name(name))


@pytest.fixture
async def milo(client, namespace, install):
    made = []

    async def make(resource=PROJECTS):
        await install(resource)
        made.append(Milo(client, namespace, resource))
        return made[-1]

    yield make
    for each in made:
        for found in (await client.list(each.resource, label_selector=each.selector)).items:
            await client.delete(each.resource, found["metadata"]["name"])


class Reader:
    """Follows the ConfigMaps of a namespace in each project."""

    def __init__(self, namespace):
        self.namespace = namespace
        self.seen = {}

    async def engage(self, engagement):
        informer = Informer(engagement.cluster.client, CONFIG_MAPS, namespace=self.namespace)
        self.seen[engagement.cluster.name] = informer
        engagement.spawn(informer.run(), name="reader")

    def found(self, cluster, name):
        return cluster in self.seen and self.seen[cluster].get(name, namespace=self.namespace)


async def test_ready_projects_are_engaged_at_their_path(client, namespace, milo, front, eventually):
    """Criterion 51: NotReady is not engaged; Ready is, at the exact URL; the selector is the watch's."""
    milo = await milo()
    await milo.create("pending")
    await milo.create("refused", ready="False")
    await milo.create("unknown", ready="Unknown")
    await milo.create("good", ready="True")
    await milo.create("other", ready="True", labels={"test": "somebody-elses"})
    await client.create(CONFIG_MAPS, {"metadata": {"name": "found"}}, namespace=namespace)
    reader = Reader(namespace)
    provider = MiloProvider(client, project_config=front.config, label_selector=milo.selector)
    manager = Manager(None, provider, awares=[reader], name="test")
    try:
        async with manager:
            good = milo.name("good")
            await eventually(lambda: reader.found(good, "found"))
            assert await manager.ready_checks.run() == {"provider": None}
            assert manager.cluster_names() == [good]
            host = front.config.server.removesuffix("/base")
            path = f"/apis/resourcemanager.miloapis.com/v1alpha1/projects/{good}/control-plane"
            assert manager.get_cluster(good).config.server == f"{host}{path}"
            assert all(asked == f"{path}/api/v1/namespaces/{namespace}/configmaps" for asked in front.asked)
            for name in ("nobody", milo.name("pending"), milo.name("other")):
                with pytest.raises(ClusterNotFound):
                    manager.get_cluster(name)
            # The provider does not poll projects that are not ready.
            await eventually(
                lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("project ")]
            )
            await milo.ready("pending", "True")
            await eventually(lambda: reader.found(milo.name("pending"), "found"))
    finally:
        await client.delete(PROJECTS, milo.name("other"))


async def test_project_not_ready_or_deleted_leaves_no_task_or_socket(
    client, namespace, milo, front, eventually, telling
):
    """Criterion 52: Ready to NotReady, deletion, and a label that goes leave no entry, no task and no socket."""
    milo = await milo()
    reader = Reader(namespace)
    fleet = Clusters(awares=[reader])
    provider = MiloProvider(client, project_config=front.config, label_selector=milo.selector)
    names = ["unready", "deleted", "relabelled"]
    async with telling(provider, fleet):
        for name in names:
            await milo.create(name)
        await eventually(lambda: all(provider._objects.get(milo.name(name)) for name in names))
        await eventually(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("project ")])
        before = len(asyncio.all_tasks())
        for name in names:
            await milo.ready(name, "True")
        await eventually(fleet.names, lambda found: len(found) == 3)
        await eventually(lambda: front.connections, lambda count: count >= 3)
        engagements = fleet.engagements()
        await milo.ready("unready", "False")
        await milo.delete("deleted")
        await client.patch(PROJECTS, milo.name("relabelled"), {"metadata": {"labels": {"test": "gone"}}})
        await eventually(lambda: [engagement.closed for engagement in engagements], all)
        assert fleet.names() == []
        await eventually(lambda: front.connections, lambda count: count == 0)
        await eventually(lambda: len(asyncio.all_tasks()), lambda count: count <= before)
        await client.delete(PROJECTS, milo.name("relabelled"))
    await fleet.aclose()


async def test_internal_service_discovery_finds_project_control_planes(
    client, milo, front, eventually, caplog, telling
):
    """Criterion 51: by internal service discovery the URL is the host of the project's namespace, with no path."""
    milo = await milo(PROJECT_CONTROL_PLANES)
    fleet = Clusters()
    provider = MiloProvider(
        client, internal_service_discovery=True, project_config=front.config, label_selector=milo.selector
    )
    async with telling(provider, fleet):
        await milo.create("pending", ready="False")
        await milo.create("a.b", ready="True")
        await milo.create("good", ready="True")
        good = milo.name("good")
        await eventually(fleet.names, lambda names: names == [good])
        server = f"https://milo-apiserver.project-{good}.svc.cluster.local:6443"
        assert fleet.get(good).config.server == server
        # The rest of the configuration stays as it is.
        assert fleet.get(good).config == front.config.with_server(server)
        await eventually(lambda: caplog.text, lambda text: "no namespace can be called 'project-a.b" in text)
        await milo.ready("good", "False")
        await eventually(fleet.names, lambda names: names == [])
    await fleet.aclose()


async def test_silent_project_delays_no_other_and_connections_are_shared(client, namespace, milo, front, eventually):
    """Criterion 63: a healthy project is engaged while another's API server hangs."""
    milo = await milo()
    names = [f"p{number}" for number in range(6)]
    front.silent.add(milo.name("p0"))
    listed = {}

    class Lister:
        async def engage(self, engagement):
            found = await engagement.cluster.client.list(CONFIG_MAPS, namespace=namespace)
            listed[engagement.cluster.name] = found

    provider = MiloProvider(client, project_config=front.config, label_selector=milo.selector)
    # The timeout of the silent project is longer than this test.
    async with Manager(None, provider, awares=[Lister()], timeout_seconds=600.0, name="test") as manager:
        for name in names:
            await milo.create(name)
        await milo.ready("p0", "True")
        await eventually(lambda: front.asked)
        for name in names[1:]:
            await milo.ready(name, "True")
            await eventually(lambda name=name: milo.name(name) in listed)
        assert milo.name("p0") in manager.cluster_names()
        assert milo.name("p0") not in listed
    # The silent project holds a connection. The other projects used the second connection in turn.
    assert len(front.opened) == 2
