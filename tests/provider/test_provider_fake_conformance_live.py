"""FakeCluster against a kube-apiserver: the same random calls to both have equal answers."""

from __future__ import annotations

import asyncio
import copy
import json
import pprint
import uuid

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kplane.provider import ApiError, Client, ClusterConfig, NotFound, Resource
from kplane.provider.client.kinds import BUILT_IN
from kplane.provider.client.listing import JSON
from kplane.provider.client.resources import CONFIG_MAPS, LEASES, NAMESPACES
from kplane.provider.testing import FakeCluster
from kplane.provider.testing.shapes import shape_of
from kplane.provider.testing.traits import has_status

pytestmark = pytest.mark.integration

WIDGETS = Resource("fake-cluster.example/v1", "Widget", "widgets", namespaced=True)
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
NOT_OURS = {"kube-root-ca.crt", "owner-1", "owner-2"}
OWN = ("uid", "resourceVersion", "creationTimestamp", "namespace")

KINDS = (CONFIG_MAPS, LEASES, WIDGETS)
kinds = st.sampled_from(KINDS)
names = st.sampled_from(["a", "b"])
values = st.sampled_from(["1", "2"])
labels = st.sampled_from([None, {}, {"app": "x"}, {"app": "y", "tier": "z"}])
removals = st.sampled_from([{"app": None}, {"tier": None, "app": "x"}])
finalizers = st.sampled_from([None, [], ["example.com/first"], ["example.com/first", "example.com/second"]])
versions = st.sampled_from(["read", "first", "none"])
selectors = st.sampled_from([None, "app=x", "app!=x", "app in (x, y),tier", "!tier"])
preconditions = st.sampled_from(["any", "its", "another", "its version", "an old version"])
# The patched object has to be valid, because a fake does not validate.
groups = {
    "text": ["/data/value", "/data/other", "/metadata/labels/app", "/metadata/labels/a~1b", "/metadata/annotations/x"],
    "map": ["/data", "/metadata/labels", "/metadata/annotations"],
    "finalizer": [f"/metadata/finalizers/{index}" for index in ("-", "0", "-1", "+1", "7", "x")],
    "other": ["/metadata/none/0", "/metadata/name", "", "data"],
}
contents = {"text": ["1", "2"], "map": [{"app": "x"}, {}, None], "finalizer": ["x/first", "x/second"], "other": ["a"]}
settable = st.sampled_from(["add", "replace", "test"])
operations = st.sampled_from(sorted(groups)).flatmap(
    lambda group: st.one_of(
        st.fixed_dictionaries(
            {"op": settable, "path": st.sampled_from(groups[group]), "value": st.sampled_from(contents[group])}
        ),
        st.fixed_dictionaries(
            {
                "op": st.sampled_from(["remove", "move", "copy"]),
                "path": st.sampled_from(groups[group]),
                "from": st.sampled_from(groups[group]),
            }
        ),
        st.fixed_dictionaries(
            {
                "op": st.just("test"),
                "path": st.sampled_from(groups[group]),
                "value": st.sampled_from([1, True, None, [], "1"]),
            }
        ),
        st.sampled_from([{"op": "add"}, {"op": "other", "path": "/data"}, {"path": "/data"}, {"op": 1}, "add", None]),
        st.sampled_from(["1", "2"]).map(
            lambda version: {"op": "add", "path": "/metadata/resourceVersion", "value": version}
        ),
    )
)
json_patches = st.tuples(st.just("json_patch"), kinds, names, st.lists(operations, max_size=3))
managers = st.sampled_from(["one", "two", "three"])


def texts(*, min_size=0):
    return st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["1", "2"]), min_size=min_size, max_size=2)


anything = st.one_of(
    st.sampled_from(["1", "2", 1, 1.5, True, None, [], {}]),
    st.just(["1", {"a": "1"}]),
    texts(),
    texts().map(dict),
)
# A real server writes a custom object again on each apply of empty labels, a fake does not.
applied_metadata = st.fixed_dictionaries(
    {},
    optional={
        "labels": texts(min_size=1),
        "annotations": texts(min_size=1),
        "finalizers": st.lists(st.sampled_from(["x/first", "x/second", "x/third"]), unique=True, min_size=1),
        "ownerReferences": st.lists(st.sampled_from(["owner-1", "owner-2"]), unique=True, min_size=1),
        "resourceVersion": st.sampled_from(["1", "read"]),
        "uid": st.sampled_from(["read", str(uuid.uuid4())]),
        "name": st.sampled_from(["a", "b"]),
        "managedFields": st.sampled_from([[], [{}]]),
    },
)
applied_contents = {
    CONFIG_MAPS: st.fixed_dictionaries({}, optional={"data": texts(), "immutable": st.just(False)}),
    LEASES: st.fixed_dictionaries(
        {},
        optional={
            "spec": st.fixed_dictionaries(
                {},
                optional={
                    "holderIdentity": st.sampled_from(["1", "2"]),
                    "leaseDurationSeconds": st.sampled_from([10, 20]),
                    "leaseTransitions": st.just(1),
                },
            )
        },
    ),
    WIDGETS: st.fixed_dictionaries(
        {},
        optional={
            "spec": st.dictionaries(st.sampled_from(["value", "x", "y"]), anything, max_size=3),
            "status": st.fixed_dictionaries({"value": anything}),
            "more": anything,
        },
    ),
}
writes_of = {
    kind: st.one_of(
        st.tuples(st.just("apply"), st.just(kind), st.just("a"), managers, applied_metadata, contents, st.booleans()),
        st.tuples(
            st.just("apply_status"), st.just(kind), st.just("a"), managers, applied_metadata, contents, st.booleans()
        ),
        st.tuples(st.just("patch_by"), st.just(kind), st.just("a"), managers, applied_metadata, contents),
        st.tuples(st.just("patch_status_by"), st.just(kind), st.just("a"), managers, applied_metadata, contents),
        st.tuples(st.just("replace_by"), st.just(kind), st.just("a"), managers, applied_metadata, contents),
        st.tuples(st.just("delete"), st.just(kind), st.just("a"), st.just("any")),
    )
    for kind, contents in applied_contents.items()
}
calls = st.one_of(
    st.tuples(st.just("create"), kinds, names, values, labels, finalizers),
    st.tuples(st.just("replace"), kinds, names, values, labels, finalizers, versions),
    st.tuples(st.just("patch"), kinds, names, values, labels | removals, finalizers),
    json_patches,
    st.tuples(st.just("status"), kinds, names, values),
    st.tuples(
        st.just("delete"), kinds, names, st.sampled_from(["any", "its", "another", "its version", "an old version"])
    ),
    st.tuples(st.just("get"), kinds, names),
    st.tuples(st.just("exists"), kinds, names),
    st.tuples(st.just("list"), kinds, selectors, st.booleans()),
    st.tuples(st.just("delete_all"), kinds),
)


def content(kind, value):
    if kind is CONFIG_MAPS:
        return {"data": {"value": value}}
    return {"spec": {"holderIdentity" if kind is LEASES else "value": value}}


def body_of(kind, name, value, labels, finalizers):
    metadata = {"name": name, "labels": labels, "finalizers": finalizers}
    return {"metadata": {key: each for key, each in metadata.items() if each is not None}, **content(kind, value)}


class Side:
    """A server, fake or real, with the resourceVersions that the test has seen."""

    def __init__(self, client, namespace):
        self.client, self.namespace = client, namespace
        self.first, self.versions, self.owners = {}, {}, {}

    async def begin(self):
        """Create the namespace and the owner of other objects."""
        await self.client.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        for name in ("owner-1", "owner-2"):
            made = await self.client.create(CONFIG_MAPS, {"metadata": {"name": name}}, namespace=self.namespace)
            self.owners[made["metadata"]["uid"]] = name

    def unnamed(self, found):
        """Return an answer with owner names in place of uids, which differ between servers."""
        text = json.dumps(found, sort_keys=True)
        for uid, name in self.owners.items():
            text = text.replace(uid, name)
        return json.loads(text)

    def shown(self, found):
        """Return an object without server-specific fields, and whether the object changed since the last call."""
        found = copy.deepcopy(found)
        metadata = found["metadata"]
        key = found["kind"], metadata["name"]
        changed = self.versions.get(key) != metadata["resourceVersion"]
        self.versions[key] = metadata["resourceVersion"]
        for field in OWN:
            metadata.pop(field, None)
        if "deletionTimestamp" in metadata:
            metadata["deletionTimestamp"] = "there is one"
        return self.unnamed(found), changed

    async def call(self, what, *arguments):
        try:
            return await getattr(self, what)(*arguments)
        except ApiError as error:
            causes = error.details.get("causes") or ()
            if error.status == 409 and causes:
                # A real server lists managers in no defined order.
                causes = sorted(json.dumps(self.unnamed(each), sort_keys=True) for each in causes)
                return error.reason, causes, self.unnamed(error.message).partition("Apply failed")[2]
            return type(error).__name__, error.status, error.reason

    async def managed(self, kind, name):
        """Return the managedFields, which the client drops."""
        try:
            found = await self.client.request("GET", kind.path(name, namespace=self.namespace))
        except NotFound:
            return None
        entries = [{**each, "time": None} for each in found["metadata"].get("managedFields", ())]
        return sorted(json.dumps(self.unnamed(each), sort_keys=True) for each in entries)

    async def create(self, kind, *fields):
        made = await self.client.create(kind, body_of(kind, *fields), namespace=self.namespace)
        self.first[kind, fields[0]] = made["metadata"]["resourceVersion"]
        return self.shown(made)

    async def replace(self, kind, name, value, labels, finalizers, version):
        body = body_of(kind, name, value, labels, finalizers)
        if version == "first" and (kind, name) in self.first:
            body["metadata"]["resourceVersion"] = self.first[kind, name]
        if version == "read":
            found = await self.client.get(kind, name, namespace=self.namespace)
            body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        return self.shown(await self.client.replace(kind, body, namespace=self.namespace))

    async def patch(self, kind, name, value, labels, finalizers):
        body = {"metadata": {"labels": labels, "finalizers": finalizers}, **content(kind, value)}
        return self.shown(await self.client.patch(kind, name, body, namespace=self.namespace))

    async def json_patch(self, kind, name, operations):
        return self.shown(await self.client.json_patch(kind, name, operations, namespace=self.namespace))

    async def apply(self, kind, name, manager, metadata, content, force, subresource=None):
        body = {"apiVersion": kind.api_version, "kind": kind.kind, **await self.body(kind, name, metadata, content)}
        return await self.send("PATCH", kind, name, manager, body, subresource, force=force, content_type=APPLY)

    async def apply_status(self, *arguments):
        return await self.apply(*arguments, subresource="status")

    async def patch_by(self, kind, name, manager, metadata, content, subresource=None):
        body = await self.body(kind, name, metadata, content)
        return await self.send("PATCH", kind, name, manager, body, subresource, content_type=MERGE)

    async def patch_status_by(self, *arguments):
        return await self.patch_by(*arguments, subresource="status")

    async def replace_by(self, kind, name, manager, metadata, content):
        body = {"apiVersion": kind.api_version, "kind": kind.kind, **await self.body(kind, name, metadata, content)}
        return await self.send("PUT", kind, name, manager, body, None)

    async def body(self, kind, name, metadata, content):
        metadata = {"name": name, **copy.deepcopy(metadata)}
        uids = {owner: uid for uid, owner in self.owners.items()}
        if owners := metadata.get("ownerReferences"):
            metadata["ownerReferences"] = [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uids[owner]} for owner in owners
            ]
        if "read" in metadata.values():
            found = await self.client.get(kind, name, namespace=self.namespace)
            metadata |= {key: found["metadata"][key] for key, value in metadata.items() if value == "read"}
        return {"metadata": metadata, **content}

    async def send(self, method, kind, name, manager, body, subresource, *, force=None, content_type=JSON):
        answer = await self.client.request(
            method,
            kind.path(name, namespace=self.namespace, subresource=subresource),
            body=body,
            params={"fieldManager": manager, "force": force},
            content_type=content_type,
        )
        answer["metadata"].pop("managedFields", None)
        return self.shown(answer)

    async def status(self, kind, name, value):
        body = {"status": {"value": value}, **content(kind, "not written")}
        return self.shown(await self.client.patch(kind, name, body, namespace=self.namespace, subresource="status"))

    async def delete(self, kind, name, which):
        found = await self.client.get(kind, name, namespace=self.namespace)
        options = {
            "any": {},
            "its": {"uid": found["metadata"]["uid"]},
            "another": {"uid": str(uuid.uuid4())},
            "its version": {"resource_version": found["metadata"]["resourceVersion"]},
            "an old version": {"resource_version": "1"},
        }
        answer = await self.client.delete(kind, name, namespace=self.namespace, **options[which])
        return answer["kind"] if answer["kind"] == "Status" else self.shown(answer)

    async def get(self, kind, name):
        return self.shown(await self.client.get(kind, name, namespace=self.namespace))

    async def exists(self, kind, name):
        return await self.client.exists(kind, name, namespace=self.namespace)

    async def list(self, kind, selector, metadata_only):
        found = await self.client.list(
            kind, namespace=self.namespace, label_selector=selector, metadata_only=metadata_only
        )
        return [self.shown(each) for each in found.items if each["metadata"]["name"] not in NOT_OURS]

    async def delete_all(self, kind):
        await self.client.delete_all(kind, namespace=self.namespace, label_selector="app=x")

    async def events(self, kind, selector, *, since):
        """Read the events of a watch from a version up to the object that ends the watch."""
        seen = []
        end = body_of(kind, "end", "1", {"app": "x", "tier": "z"}, None)
        await self.client.create(kind, end, namespace=self.namespace)
        watch = self.client.watch(
            kind, resource_version=since, namespace=self.namespace, label_selector=selector, timeout_seconds=30
        )
        async with watch:
            async for event in watch:
                if event.type == "BOOKMARK" or event.object["metadata"]["name"] in NOT_OURS:
                    continue
                seen.append((event.type, *self.shown(event.object)))
                if event.object["metadata"]["name"] == "end":
                    break
        return seen


async def differences(sides, told, selector):
    for side in sides:
        await side.begin()
    begun = [
        {kind: (await side.client.list(kind, namespace=side.namespace)).resource_version for kind in KINDS}
        for side in sides
    ]
    for call in told:
        real, fake = [await side.call(*call) for side in sides]
        if real != fake:
            return [call, real, fake]
        if len(call) > 2 and isinstance(call[2], str):
            real, fake = [await side.managed(*call[1:3]) for side in sides]
            if real != fake:
                return [call, real, fake]
    for kind in KINDS:
        real, fake = [
            await side.events(kind, selector, since=since[kind]) for side, since in zip(sides, begun, strict=True)
        ]
        if real != fake:
            return [kind, real, fake]
    return []


def compared(api_server, told, selector=None):
    """Describe the first difference between both servers, or return an empty text."""

    async def found():
        fake = FakeCluster("fake", kinds=[WIDGETS])
        try:
            async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="test") as client:
                namespace = f"fake-{uuid.uuid4().hex[:8]}"
                return await differences([Side(client, namespace), Side(fake.client, namespace)], told, selector)
        finally:
            await fake.aclose()

    each = asyncio.run(found())
    return each and f"the call, then the answers of the real and of the fake one:\n{pprint.pformat(each, width=160)}"


at_both = settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@at_both
@given(st.lists(calls, min_size=1, max_size=14), st.sampled_from([None, "app=x", "app in (x, y)"]))
def test_fake_answers_like_a_real_server(api_server, served_widgets, told, selector):
    found = compared(api_server, told, selector)
    assert not found, found


@at_both
@given(kinds, labels, finalizers, st.lists(json_patches.map(lambda call: call[3]), min_size=1, max_size=8))
def test_fake_applies_json_patches_like_a_real_server(api_server, served_widgets, kind, labels, finalizers, patches):
    told = [("create", kind, "a", "1", labels, finalizers), *(("json_patch", kind, "a", patch) for patch in patches)]
    found = compared(api_server, told)
    assert not found, found


@at_both
@given(kinds.flatmap(lambda kind: st.lists(writes_of[kind], min_size=1, max_size=8)))
def test_fake_reports_managers_like_a_real_server(api_server, served_widgets, told):
    found = compared(api_server, told)
    assert not found, found


def test_fake_merges_old_update_managers_like_a_real_server(api_server, served_widgets):
    writers = [("patch_by", CONFIG_MAPS, "a", f"writer-{n:02}", {}, {"data": {str(n): "1"}}) for n in range(14)]
    found = compared(api_server, [("create", CONFIG_MAPS, "a", "1", None, None), *writers])
    assert not found, found


@pytest.fixture
async def served_widgets(install):
    await install(WIDGETS)


async def test_fake_has_status_subresources_of_a_real_server(client):
    """Compares each built-in kind in its version."""
    real = set()
    for version in {kind.rpartition("/")[0] for kind in BUILT_IN}:
        path = f"/{'apis' if '/' in version else 'api'}/{version}"
        for each in (await client.request("GET", path))["resources"]:
            plural, _, subresource = each["name"].partition("/")
            if subresource == "status":
                real.add((version, plural))
    fake = {(each.api_version, each.plural) for each in BUILT_IN.values() if has_status(each)}
    assert fake == {(each.api_version, each.plural) for each in BUILT_IN.values()} & real


async def test_fake_merges_kinds_like_a_real_server(client):
    """Compares each list and map of each built-in kind with the OpenAPI document."""
    types = (await client.request("GET", "/openapi/v2"))["definitions"]
    kinds = {}
    for name, each in types.items():
        for called in each.get("x-kubernetes-group-version-kind", ()):
            group, version, kind = called["group"], called["version"], called["kind"]
            kinds[f"{group}/{version}/{kind}" if group else f"{version}/{kind}"] = name
    wrong = {}
    for kind, resource in BUILT_IN.items():
        for path, real, fake in merging({"$ref": kinds[kind]}, shape_of(resource), types, kind):
            if real != fake:
                wrong.setdefault(path.rpartition(".")[2], []).append((path, real, fake))
    assert not wrong, pprint.pformat(wrong, width=160)


def merging(described, shape, types, path, seen=()):
    """Yield each part of a kind with its merge strategy at a real server and at a fake."""
    reference = described.get("$ref", "").rpartition("/")[2]
    if reference in seen:
        return
    seen, described = (*seen, reference) if reference else seen, {**types.get(reference, {}), **described}
    if described.get("type") == "array":
        style = described.get("x-kubernetes-list-type", "atomic")
        keys = {"atomic": None, "set": ()}.get(style, tuple(described.get("x-kubernetes-list-map-keys", ())))
        yield path, keys, shape.keys
        if keys is not None:
            yield from merging(described["items"], shape.item, types, f"{path}[]", seen)
    elif described.get("type") == "object" or "properties" in described:
        atomic = described.get("x-kubernetes-map-type") == "atomic"
        yield path, atomic, shape.atomic
        if atomic:
            return
        fields = described.get("properties", {})
        yield path, bool(fields), shape.has_field("any")
        for name, each in fields.items():
            yield from merging(each, shape.at(name), types, f"{path}.{name}", seen)
        if "additionalProperties" in described:
            yield from merging(described["additionalProperties"], shape.at("any"), types, f"{path}{{}}", seen)
