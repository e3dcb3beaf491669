"""Example of a finalizer: its reconciler with faults in memory, and its program with two real API servers."""

from __future__ import annotations

import base64
import shutil
import uuid
from pathlib import Path

import pytest
import yaml

from examples.finalizer.buckets import BUCKETS, FINALIZER, Buckets
from kplane.provider import Client, ClusterConfig, Manager, NotFound, Unreachable, controller
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster

from .conftest import EXAMPLES

PROGRAM = "finalizer/buckets.py"


def bucket(**metadata):
    body = yaml.safe_load((EXAMPLES / "finalizer" / "bucket.yaml").read_text())
    body["metadata"] |= metadata
    return body


async def condition(client, namespace="default"):
    """Return status and reason of a Bucket's condition, or None for a Bucket that is gone."""
    try:
        photos = await client.get(BUCKETS, "photos", namespace=namespace)
    except NotFound:
        return None
    ready = photos.get("status", {}).get("conditions", [{}])[0]
    return ready.get("status"), ready.get("reason")


def kept(store):
    """Return the content of each file of the store, by its name."""
    return {path.name: path.read_text() for path in store.iterdir()}


PROVIDED = ("True", "Provided")


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
async def fake(store):
    """Cluster in memory with the reconciler."""
    fleet, cluster = ClustersProvider(), FakeCluster("acme", kinds=[BUCKETS])
    manager = Manager(None, fleet, name="test")
    controller(manager).for_(BUCKETS).owns("v1/Secret").build(Buckets(store).reconcile)
    async with manager:
        await fleet.add(cluster)
        yield cluster


def lost():
    return Unreachable("no answer came", kind="timeout")


@pytest.mark.parametrize("takes_effect", [True, False])
@pytest.mark.parametrize(
    ("verb", "kind", "finalizers"),
    [("patch", BUCKETS, []), ("patch", "v1/Secret", []), ("update", BUCKETS, [FINALIZER])],
    ids=["finalizer", "secret", "status"],
)
async def test_failed_write_is_retried_without_second_file(
    fake, store, eventually, verb, kind, finalizers, takes_effect
):
    fake.fail(lost(), verb=verb, kind=kind, takes_effect=takes_effect)
    created = await fake.client.create(BUCKETS, bucket(finalizers=finalizers))
    await eventually(lambda: condition(fake.client), lambda found: found == PROVIDED)
    assert kept(store) == {created["metadata"]["uid"]: "100 MiB\n"}
    updated = await fake.client.get(BUCKETS, "photos", namespace="default")
    assert updated["metadata"]["finalizers"] == [FINALIZER]
    secret = await fake.client.get(SECRETS, "photos-bucket", namespace="default")
    assert base64.b64decode(secret["data"]["address"]).decode() == (store / created["metadata"]["uid"]).as_uri()
    # Because of the owner reference, Kubernetes deletes the Secret with the Bucket.
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [created["metadata"]["uid"]]


@pytest.mark.parametrize("takes_effect", [True, False])
async def test_interrupted_deletion_is_completed(fake, store, eventually, takes_effect):
    await fake.client.create(BUCKETS, bucket())
    await eventually(lambda: condition(fake.client), lambda found: found == PROVIDED)
    fake.fail(lost(), verb="patch", kind=BUCKETS, takes_effect=takes_effect)
    await fake.client.delete(BUCKETS, "photos", namespace="default")
    await eventually(lambda: condition(fake.client), lambda found: found is None)
    assert kept(store) == {}


async def test_finalizers_of_other_controllers_are_kept(fake, store, eventually):
    await fake.client.create(BUCKETS, bucket(finalizers=["example.com/theirs"]))
    await eventually(lambda: condition(fake.client), lambda found: found == PROVIDED)
    await fake.client.delete(BUCKETS, "photos", namespace="default")

    async def finalizers():
        return (await fake.client.get(BUCKETS, "photos", namespace="default"))["metadata"]["finalizers"]

    await eventually(finalizers, lambda found: found == ["example.com/theirs"])
    assert kept(store) == {}


async def test_missing_store_is_reported_and_blocks_deletion(fake, store, eventually):
    store.rmdir()
    await fake.client.create(BUCKETS, bucket())
    await eventually(lambda: condition(fake.client), lambda found: found == ("False", "FileNotFoundError"))
    store.mkdir()
    await eventually(lambda: condition(fake.client), lambda found: found == PROVIDED)
    moved = shutil.move(store, f"{store}-moved")
    await fake.client.delete(BUCKETS, "photos", namespace="default")
    await eventually(lambda: condition(fake.client), lambda found: found == ("False", "FileNotFoundError"))
    shutil.move(moved, store)
    await eventually(lambda: condition(fake.client), lambda found: found is None)
    assert kept(store) == {}


async def test_secret_without_owner_is_reported_and_left_unchanged(fake, eventually):
    existing = {"metadata": {"name": "photos-bucket", "namespace": "default"}, "data": {"theirs": "eWVz"}}
    await fake.client.create(SECRETS, existing)
    await fake.client.create(BUCKETS, bucket())
    await eventually(lambda: condition(fake.client), lambda found: found == ("False", "ObjectTaken"))
    secret = await fake.client.get(SECRETS, "photos-bucket", namespace="default")
    assert secret["data"] == existing["data"]


@pytest.fixture
async def fleet(client, api_server, clean_api_server, kubectl, install_crd, tmp_path):
    """Two clusters. Each has a Bucket of the same name."""
    await install_crd("finalizer/crd.yaml")
    crd = EXAMPLES / "finalizer" / "crd.yaml"
    clean_api_server.kubectl("apply", "--filename", str(crd))
    clean_api_server.kubectl("wait", "--for=condition=Established", "--filename", str(crd))
    (tmp_path / "clusters").mkdir()
    for name, path in {"home": api_server.admin_kubeconfig, "away": clean_api_server.kubeconfig}.items():
        (tmp_path / "clusters" / f"{name}.kubeconfig").write_bytes(Path(path).read_bytes())
    namespace = f"buckets-{uuid.uuid4().hex[:8]}"
    async with Client(ClusterConfig.load(clean_api_server.kubeconfig), field_manager="kplane") as away:
        for cluster in (client, away):
            await cluster.create(NAMESPACES, {"metadata": {"name": namespace}})
            await cluster.create(BUCKETS, bucket(namespace=namespace))
        yield namespace, client, away
    await client.delete(NAMESPACES, namespace)


@pytest.mark.integration
async def test_buckets_of_two_clusters_have_files_until_deletion(fleet, store, running, eventually):
    namespace, home, away = fleet
    arguments = (PROGRAM, "clusters", store)

    async def conditions():
        return await condition(home, namespace), await condition(away, namespace)

    async with running(*arguments):
        await eventually(conditions, lambda found: found == (PROVIDED, PROVIDED))
        buckets = [await item.get(BUCKETS, "photos", namespace=namespace) for item in (home, away)]
        assert kept(store) == {item["metadata"]["uid"]: "100 MiB\n" for item in buckets}
        await home.patch(BUCKETS, "photos", {"spec": {"quotaMiB": 200}}, namespace=namespace)
        await eventually(lambda: kept(store)[buckets[0]["metadata"]["uid"]], lambda found: found == "200 MiB\n")
        await home.delete(SECRETS, "photos-bucket", namespace=namespace)
        await eventually(lambda: home.get(SECRETS, "photos-bucket", namespace=namespace))
        await away.delete(BUCKETS, "photos", namespace=namespace)
        await eventually(conditions, lambda found: found == (PROVIDED, None))
        assert kept(store) == {buckets[0]["metadata"]["uid"]: "200 MiB\n"}

    # While no process runs, the finalizer holds the Bucket.
    await home.delete(BUCKETS, "photos", namespace=namespace)
    assert await condition(home, namespace) == PROVIDED
    async with running(*arguments):
        await eventually(conditions, lambda found: found == (None, None))
    assert kept(store) == {}
