"""Templates of new control planes: selection, waiting time, and the start without a template."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import AuthModel, AuthSpec, ControlPlane, ControlPlaneClass
from kplane.components.api_server import API_SERVER_RESOURCES
from kplane.components.names import template_name
from kplane.controlplane_operator.backends import templates as module
from kplane.controlplane_operator.backends.template_making import Wanted, left_out
from kplane.controlplane_operator.backends.templates import Templates
from kplane.controlplane_operator.backends.versions import ApiServerPlan
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.errors import TemplateFailed
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.stores import Stores
from kplane.data import Original, Owner, Template
from kplane.workloads import RuntimeFailure

NETWORK = "10.96.0.0/16"
VERSION = "1.36.3"


def class_of(**spec: Any) -> ControlPlaneClass:
    return ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": spec})


def wanted(version: str = VERSION, **spec: Any) -> Wanted:
    return Wanted.of(class_of(**spec), version=version, asked=None)


@pytest.mark.parametrize(
    "other",
    [
        wanted("1.36.4"),
        wanted(apiServer={"serviceCIDR": "10.7.0.0/16"}),
        wanted(apiServer={"extraArgs": ["--feature-gates=A=true"]}),
    ],
)
def test_template_name_depends_on_version_cidr_and_flags(other: Wanted) -> None:
    assert other.name != wanted().name


@pytest.mark.parametrize(
    "other",
    [
        Wanted.of(None, version=VERSION, asked=VERSION, service_cidr=NETWORK),
        wanted(auth={"lifetime": "1h", "model": "x509", "defaultRole": "view"}),
        wanted(
            apiServer={
                "encryptedResources": ["secrets"],
                "oidc": [{"issuerURL": "https://a.example", "clientIDs": ["a"]}],
            }
        ),
        wanted(resources={"requests": {"cpu": "1"}}, pods={"nodeSelector": {"a": "b"}}),
    ],
)
def test_template_name_ignores_all_other_fields(other: Wanted) -> None:
    assert other.name == wanted().name


def test_left_out_names_default_access_for_other_auth() -> None:
    binding, account = b"clusterrolebindings/controlplane-admin", b"serviceaccounts/kplane-system/controlplane-admin"
    assert left_out(AuthSpec()) == left_out(AuthSpec(lifetime="1h")) == frozenset()
    assert left_out(AuthSpec(default_role="view")) == {binding}
    assert left_out(AuthSpec(model=AuthModel.X509)) == {binding, account}


def test_template_name_is_a_single_key_segment() -> None:
    for version in ("1.36.3", "v1.36.3-eks-abc+DIRTY", "x" * 200, "---"):
        name = wanted(version).name
        assert len(name) <= 63
        assert name.strip("-") == name


class Maker:
    """Fake maker: makes templates at once, or fails."""

    def __init__(self) -> None:
        self.there: dict[str, Original] = {}
        self.made: list[str] = []
        self.discarded: list[str] = []
        self.failing: Exception | None = None

    async def find(self, wanted: Wanted) -> Original | None:
        return self.there.get(wanted.name)

    async def make(self, wanted: Wanted, *, host: str) -> None:
        self.made.append(wanted.name)
        if self.failing is not None:
            raise self.failing
        self.there[wanted.name] = Original.of(Template(1, {}))

    async def discard(self, name: str) -> None:
        self.discarded.append(name)


class Runtime:
    def __init__(self) -> None:
        self.running: set[str] = set()
        self.ended: list[str] = []

    async def version(self, program: str) -> str | None:
        return VERSION

    async def synced(self) -> None:
        pass

    def names(self, *, prefix: str = "") -> list[str]:
        return sorted(name for name in self.running if name.startswith(prefix))

    async def delete(self, name: str) -> None:
        self.running.discard(name)
        self.ended.append(name)


class Keyspace:
    """Fake etcd: existing users, and prefixes that are copies or have other data."""

    def __init__(self) -> None:
        self.users: set[str] = set()
        self.copies: dict[str, str] = {}
        self.data: set[str] = set()
        self.kept: dict[str, Owner] = {}

    async def has_user(self, user: str) -> bool:
        return user in self.users

    async def lacks_data(self, prefix: str, *, owner: Owner) -> bool:
        return (
            prefix not in self.data and self.copies.get(prefix, f"unfinished {owner.uid}") == f"unfinished {owner.uid}"
        )

    async def discard_unfinished(self, prefix: str, *, owner: Owner) -> None:
        if self.copies.get(prefix) == f"unfinished {owner.uid}":
            del self.copies[prefix]

    async def is_copy(self, prefix: str, *, owner: Owner) -> bool:
        return self.copies.get(prefix) == owner.uid

    async def clone(
        self, original: Original, prefix: str, *, owner: Owner, replaced: str, without: frozenset[bytes]
    ) -> bool:
        assert replaced == owner.uid
        assert not without
        self.copies[prefix] = owner.uid
        return True

    async def templates(self) -> dict[str, Owner]:
        return self.kept


class Desk:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.again: asyncio.Queue[str] = asyncio.Queue()
        triggers = SimpleNamespace(control_planes=SimpleNamespace(add=self.again.put_nowait))
        self.stores = Stores()
        self.runtime, self.maker, self.keyspace = Runtime(), Maker(), Keyspace()
        events = SimpleNamespace(record=lambda about, **said: self.told.append(f"{about.name} {said['reason']}"))
        fields = {"events": events, "triggers": triggers, "stores": self.stores}
        context = OperatorContext(**{**dict.fromkeys(OperatorContext.__dataclass_fields__), **fields})  # type: ignore[arg-type]
        runtime: Any = self.runtime
        shared: Any = SimpleNamespace(keyspace=self.keyspace)
        access: Any = None
        self.makers: set[str] = set()
        self.templates = Templates(context, runtime=runtime, shared=shared, access=access, makers=self.makers)
        self.templates._maker = self.maker  # type: ignore[assignment]

    async def find(self, name: str) -> Original | None:
        return await self.templates.find(control_plane(name), plan=PLAN, service_cidr=NETWORK)

    async def copy(self, name: str) -> bool:
        return await self.templates.copy(
            control_plane(name),
            prefix=f"/clusters/{name}/",
            owner=Owner(f"uid-{name}", name),
            user=f"cp-{name}",
            plan=PLAN,
            service_cidr=NETWORK,
        )

    async def waits(self, name: str) -> None:
        with pytest.raises(ConditionError, match="waiting for template"):
            await self.find(name)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.templates.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def queued(self, *names: str) -> None:
        """Wait until these control planes are enqueued."""
        enqueued = set()
        while not enqueued >= set(names):
            enqueued.add(await self.again.get())


PLAN = ApiServerPlan(None, API_SERVER_RESOURCES)


def control_plane(name: str) -> ControlPlane:
    return ControlPlane.model_validate({"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {}})


async def test_one_template_is_made_for_all_waiting_control_planes() -> None:
    desk = Desk()
    for name in ("a", "b", "a"):
        await desk.waits(name)
    async with desk.working():
        await desk.queued("a", "b")
        assert await desk.find("a") is await desk.find("b") is not None
    assert desk.maker.made == [wanted().name]
    assert desk.told == []


@pytest.mark.parametrize("error", [TemplateFailed("no"), RuntimeFailure("no"), TimeoutError()])
async def test_copy_returns_false_after_template_failed(error: Exception) -> None:
    desk = Desk()
    desk.maker.failing = error
    await desk.waits("a")
    async with desk.working():
        await desk.queued("a")
        assert await desk.copy("a") is False
        assert await desk.copy("b") is False
    assert desk.told == ["a TemplateFailed", "b TemplateFailed"]
    assert len(desk.maker.made) == 1


async def test_failed_template_is_made_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.maker.failing = TemplateFailed("no")
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.0)
    await desk.waits("a")
    async with desk.working():
        await desk.queued("a")
        desk.maker.failing = None
        await desk.waits("a")
        await desk.queued("a")
        assert await desk.find("a") is not None


async def test_find_returns_none_after_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    await desk.waits("a")
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", -1.0)
    assert await desk.find("a") is None
    assert desk.told == ["a TemplateFailed"]


async def test_copy_keeps_its_decision_once_the_user_exists() -> None:
    desk = Desk()
    desk.maker.there[wanted().name] = Original.of(Template(1, {}))
    assert await desk.copy("a")
    desk.keyspace.copies.clear()
    assert await desk.copy("a")
    # Its API server may have begun to write.
    desk.keyspace.users.add("cp-b")
    assert not await desk.copy("b")
    assert "/clusters/b/" not in desk.keyspace.copies
    # The operator was restarted after the copy.
    desk.keyspace.users.add("cp-c")
    desk.keyspace.copies["/clusters/c/"] = "uid-c"
    assert await desk.copy("c")


async def test_retained_data_wait_for_no_template() -> None:
    desk = Desk()
    desk.keyspace.data.add("/clusters/a/")
    desk.keyspace.copies["/clusters/b/"] = "of an earlier control plane"
    assert not await desk.copy("a")
    assert not await desk.copy("b")
    assert desk.maker.made == []


async def test_collect_discards_unused_templates() -> None:
    desk = Desk()
    used = class_of(apiServer={"serviceCIDR": "10.7.0.0/16"}, version="1.35.0")
    spec = used.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]
    metadata = {"name": "c", "resourceVersion": "1"}
    desk.stores.classes.apply({"kind": "ControlPlaneClass", "metadata": metadata, "spec": spec})
    used_names = {wanted().name, Wanted.of(used, version="1.35.0", asked=None).name}
    desk.keyspace.kept = dict.fromkeys([*used_names, "1-34-0-0123", "1-36-3-0123"], Owner("made"))
    assert sorted(await desk.templates.collect()) == ["1-34-0-0123", "1-36-3-0123"]
    assert desk.maker.discarded == ["1-34-0-0123", "1-36-3-0123"]


async def test_run_deletes_leftover_api_servers_of_templates() -> None:
    desk = Desk()
    desk.runtime.running = {template_name("a"), template_name("b"), "apiserver-a", "apiserver-template-a"}
    # A maker for another data store uses this API server.
    desk.makers.add(template_name("b"))
    await desk.waits("a")
    async with desk.working():
        await desk.queued("a")
        for _ in range(10):
            await asyncio.sleep(0)
    assert desk.runtime.ended == [template_name("a")]
