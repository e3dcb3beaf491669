"""Webhooks as API servers call them: answers, refusals, failures, time-outs, and renewed certificates."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import io
import json
import ssl
from types import SimpleNamespace

import aiohttp
import pytest

from kplane.pki.primitives import create_authority, issue_serving
from kplane.provider import Cluster, ClusterConfig, Manager, ProviderError
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.webhooks import Denied, Webhooks

NOWHERE = ClusterConfig("https://127.0.0.1:1")
REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
POD = {"group": "", "version": "v1", "kind": "Pod"}
CONVERSION = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview"}


def review(**fields):
    request = {"uid": "u", "operation": "CREATE", "kind": POD, "object": {"metadata": {"name": "a"}}, **fields}
    return REVIEW | {"request": request}


@pytest.fixture
def authority():
    return create_authority("webhooks")


@pytest.fixture
def files(authority, tmp_path):
    """`files.renew()`: write another certificate of the same authority."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def renew():
        pair = issue_serving(authority, common_name="webhooks", hosts=["127.0.0.1"])
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        return ssl.PEM_cert_to_DER_cert(pair.certificate.decode())

    renew()
    return SimpleNamespace(certificate=certificate, key=key, renew=renew)


@pytest.fixture
def serving(authority, files):
    """`async with serving(describe, ...) as post`: serve the functions that `describe` adds; `post` sends a review."""

    @contextlib.asynccontextmanager
    async def run(describe, *, provider=None, awares=(), **options):
        manager = Manager(NOWHERE, provider, awares=awares, name="test")
        webhooks = Webhooks(manager, certificate=files.certificate, key=files.key, host="127.0.0.1", port=0, **options)
        describe(webhooks)
        manager.add(webhooks)
        trusted = ssl.create_default_context(cadata=authority.certificate.decode())
        assert (await manager.ready_checks.run())["webhooks"] == "the webhooks are not served yet; see the log"
        async with manager, aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as session:
            await webhooks.listening.wait()
            assert (await manager.ready_checks.run())["webhooks"] is None
            url = "https://{}:{}".format(*webhooks.address)

            async def post(path, body, **more):
                options = {"json": body} if isinstance(body, dict) else {"data": io.BytesIO(body)}
                async with session.post(f"{url}{path}", **options, **more) as answer:
                    text = await answer.text()
                    return answer.status, json.loads(text)["response"] if answer.status == 200 else text

            post.url = url
            post.trusted = trusted
            yield post
        with pytest.raises(ProviderError, match="are not served now"):
            _ = webhooks.address

    return run


async def test_review_response_has_changes_warnings_or_refusal(serving):
    seen = []

    def describe(webhooks):
        @webhooks.mutate("v1/Pod")
        async def default(admission):
            seen.append(admission)
            admission.warn("this is old")
            admission.object["metadata"]["labels"]["example.com/a~b"] = "1"
            admission.object["spec"] = {"on": True, "list": [1, {"x": 1}]}
            del admission.object["gone"]

        @webhooks.validate("v1/Pod")
        async def check(admission):
            if admission.operation == "DELETE":
                raise Denied(f"{admission.user.name} must not delete {admission.old_object['metadata']['name']}")
            raise Denied("spec.size is missing: set it", code=422)

    sent = {"metadata": {"name": "a", "labels": {}}, "spec": {"on": 1, "list": [1, {"x": 1.0}]}, "gone": None}
    user = {"username": "jo", "groups": ["a", "b"], "extra": {"scopes": ["x"]}}
    async with serving(describe) as post:
        body = review(
            object=sent, userInfo=user, namespace="n", name="a", dryRun=True, options={"kind": "CreateOptions"}
        )
        status, answer = await post("/mutate--v1-pod?timeout=5s", body)
        assert (status, answer["uid"], answer["allowed"]) == (200, "u", True)
        assert (answer["warnings"], answer["patchType"]) == (["this is old"], "JSONPatch")
        assert sorted(json.loads(base64.b64decode(answer["patch"])), key=lambda each: each["path"]) == [
            {"op": "remove", "path": "/gone"},
            {"op": "add", "path": "/metadata/labels/example.com~1a~0b", "value": "1"},
            {"op": "replace", "path": "/spec/list", "value": [1, {"x": 1}]},
            {"op": "replace", "path": "/spec/on", "value": True},
        ]
        (admission,) = seen
        assert (admission.cluster.name, admission.operation, str(admission.kind)) == ("", "CREATE", "v1/Pod")
        assert (admission.namespace, admission.name, admission.dry_run) == ("n", "a", True)
        assert (admission.user.name, admission.user.groups) == ("jo", ("a", "b"))
        assert (admission.user.extra, admission.options) == ({"scopes": ("x",)}, {"kind": "CreateOptions"})

        status, answer = await post("/validate--v1-pod", review())
        denied = {"code": 422, "message": "spec.size is missing: set it"}
        assert (status, answer) == (200, {"uid": "u", "allowed": False, "status": denied})
        body = review(operation="DELETE", object=None, oldObject={"metadata": {"name": "a"}}, userInfo=user)
        status, answer = await post("/validate--v1-pod", body)
        assert answer["status"] == {"code": 403, "message": "jo must not delete a"}


async def test_failing_function_returns_an_http_error(serving, caplog):
    def describe(webhooks):
        @webhooks.validate("v1/Pod")
        async def fail(admission):
            if admission.name == "slow":
                await asyncio.Event().wait()
            raise TimeoutError("of its own") if admission.name == "timeout" else KeyError("secret")

    async with serving(describe) as post:
        assert await post("/validate--v1-pod", review(namespace="n", name="a")) == (
            500,
            "the webhook failed; its log says why",
        )
        assert "KeyError: 'secret'" in caplog.text
        status, text = await post("/validate--v1-pod?timeout=1s", review(name="slow"))
        assert (status, text) == (504, "the webhook had no answer within 0.9 s")
        assert (await post("/validate--v1-pod?timeout=1s", review(name="timeout")))[0] == 500
        assert "TimeoutError: of its own" in caplog.text


@pytest.mark.parametrize(
    ("path", "body", "status", "why"),
    [
        ("/validate--v1-pod", b"{", 400, "no JSON"),
        ("/validate--v1-pod", {"kind": "Pod"}, 400, "no AdmissionReview of admission.k8s.io/v1"),
        ("/validate--v1-pod", REVIEW | {"apiVersion": "admission.k8s.io/v1beta1", "request": {}}, 400, "no Admission"),
        ("/validate--v1-pod", review(uid=None), 400, "needs a uid"),
        ("/validate--v1-pod", review(uid=1), 400, "uid of the request is no text"),
        ("/validate--v1-pod", review(operation="PATCH"), 400, "needs a uid and an operation"),
        ("/validate--v1-pod", review(object=[]), 400, "object of the request is no object"),
        ("/validate--v1-pod", review(kind={**POD, "kind": "Node"}), 400, "about v1/Node, and this webhook about"),
        ("/validate--v1-node", review(), 404, "there are /validate--v1-pod"),
        ("/validate--v1-pod/more", review(), 404, ""),
        ("/clusters/none/validate--v1-pod", review(), 404, "no cluster 'none'"),
        ("/validate--v1-pod", bytes(8 << 20), 413, "at most 7340032 bytes"),
        ("/convert", {}, 404, "no kinds are converted"),
    ],
)  # fmt: skip
async def test_invalid_review_is_refused_with_a_reason(serving, path, body, status, why):
    def describe(webhooks):
        @webhooks.validate("v1/Pod")
        async def check(admission):
            raise AssertionError(admission)

    async with serving(describe, provider=ClustersProvider()) as post:
        found = await post(path, body)
        assert found[0] == status
        assert why in found[1]


async def test_path_names_a_cluster_of_any_replica(serving):
    fleet, seen = ClustersProvider(), []
    await fleet.add(Cluster("eu/one", config=NOWHERE))

    def describe(webhooks):
        @webhooks.validate("v1/Pod")
        async def check(admission):
            seen.append(admission.cluster.name)

    async with serving(describe, provider=fleet) as post:
        # API servers decode the escapes of the path in a clientConfig.
        for path in ("/clusters/eu/one/validate--v1-pod", "/clusters/eu%2Fone/validate--v1-pod"):
            assert (await post(path, review()))[1] == {"uid": "u", "allowed": True}
        assert seen == ["eu/one", "eu/one"]


async def test_validation_drops_changes_and_refuses_deep_objects(serving):
    def describe(webhooks):
        @webhooks.validate("v1/Pod")
        async def check(admission):
            admission.object.setdefault("spec", {})

        @webhooks.mutate("v1/Pod")
        async def change(admission):
            admission.object["spec"] = {}

    deep = {"metadata": {}}
    for _ in range(300):
        deep = {"a": deep}
    async with serving(describe) as post:
        assert (await post("/validate--v1-pod", review()))[1] == {"uid": "u", "allowed": True}
        deleted = review(operation="DELETE", object=None, oldObject={"metadata": {}})
        assert (await post("/mutate--v1-pod", deleted))[1] == {"uid": "u", "allowed": True}
        for path in ("/validate--v1-pod", "/mutate--v1-pod"):
            refused = (await post(path, review(object=deep)))[1]["status"]
            assert refused == {"code": 422, "message": "the object is nested deeper than 254 levels: make it flatter"}


async def test_compressed_review_is_refused_unread(serving):
    def describe(webhooks):
        @webhooks.convert("example.com/Widget")
        def convert(found, version):
            raise AssertionError(found)

    async with serving(describe) as post:
        body = gzip.compress(bytes(1 << 20))
        found = await post("/convert", body, headers={"Content-Encoding": "gzip"})
        assert found == (415, "a review is not compressed")


async def test_removed_cluster_is_served_until_its_engagement_ends(serving):
    """A rolling update fails no writes in a cluster whose controllers still end."""
    fleet, ending, ended = ClustersProvider(), asyncio.Event(), asyncio.Event()
    await fleet.add(Cluster("one", config=NOWHERE))

    class Slow:
        async def engage(self, engagement):
            async def end():
                ending.set()
                await ended.wait()

            engagement.on_close(end)

    def describe(webhooks):
        @webhooks.validate("v1/Pod")
        async def check(admission):
            pass

    async with serving(describe, provider=fleet, awares=[Slow()]) as post:
        assert (await post("/clusters/one/validate--v1-pod", review()))[0] == 200
        async with asyncio.TaskGroup() as tasks:
            removed = tasks.create_task(fleet.remove("one"))
            await ending.wait()
            assert (await post("/clusters/one/validate--v1-pod", review()))[0] == 200
            ended.set()
            await removed
        assert (await post("/clusters/one/validate--v1-pod", review()))[0] == 404


async def test_client_ca_refuses_clients_without_a_certificate(serving, authority, files, tmp_path):
    ca = tmp_path / "clients.crt"
    ca.write_bytes(create_authority("clients").certificate)
    async with serving(lambda _: None, client_ca=ca) as post:
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await post("/validate--v1-pod", review())
    ca.write_bytes(b"nothing")
    webhooks = Webhooks(Manager(NOWHERE, name="test"), certificate=files.certificate, key=files.key, client_ca=ca)
    with pytest.raises(ProviderError, match=r"the CA of clients .* cannot be used"):
        await webhooks.run()


async def test_conversion_returns_all_objects_or_the_failure(serving):
    def describe(webhooks):
        @webhooks.convert("example.com/Widget")
        def convert(found, version):
            if found["metadata"]["name"] == "odd":
                raise ProviderError("its size is odd")
            if found["metadata"]["name"] == "bug":
                raise KeyError("secret")
            if found["metadata"]["name"] == "nothing":
                return None
            found["converted"] = version
            return found

    def widget(name, version="v1", kind="Widget"):
        return {"apiVersion": f"example.com/{version}", "kind": kind, "metadata": {"namespace": "n", "name": name}}

    async with serving(describe) as post:

        async def convert(*objects):
            request = {"uid": "u", "desiredAPIVersion": "example.com/v2", "objects": objects}
            status, answer = await post("/convert", CONVERSION | {"request": request})
            assert (status, answer["uid"]) == (200, "u")
            return answer["convertedObjects"], answer["result"]

        many = [widget(str(number)) for number in range(250)]
        found, result = await convert(*many, widget("there", "v2"))
        assert result == {"status": "Success"}
        assert found[0] == {**widget("0", "v2"), "converted": "example.com/v2"}
        assert (found[-1], len(found)) == (widget("there", "v2"), 251)
        what = "failed to convert example.com/Widget n/{} to example.com/v2: {}"
        in_log = "see the log of the webhook"
        for name, why in (("odd", "its size is odd"), ("bug", in_log), ("nothing", in_log)):
            assert await convert(widget("x"), widget(name)) == (
                [],
                {"status": "Failure", "message": what.format(name, why)},
            )
        assert (await convert(widget("x", kind="Gadget")))[1]["message"] == "no webhook converts example.com/Gadget"
        assert (await convert(1))[1]["message"] == "an object of the request has no metadata"
        assert (await post("/convert", review()))[0] == 400


async def test_renewed_certificate_is_used_by_new_connections(serving, files, eventually, caplog):
    async with serving(lambda _: None) as post:
        host, _, port = post.url.removeprefix("https://").partition(":")

        async def shown():
            _, writer = await asyncio.open_connection(host, int(port), ssl=post.trusted)
            found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return found

        first = await shown()
        key = files.key.read_bytes()
        files.key.write_bytes(b"")
        await eventually(lambda: "serving with the former certificate" in caplog.text)
        assert await shown() == first
        files.key.write_bytes(key)
        renewed = files.renew()
        assert renewed != first
        await eventually(shown, lambda found: found == renewed)


async def test_webhook_definition_errors_raise_at_once(files):
    webhooks = Webhooks(Manager(NOWHERE, name="test"), certificate=files.certificate, key=files.key)
    with pytest.raises(ProviderError, match="is not the name of a kind"):
        webhooks.validate("Pod")(None)
    with pytest.raises(ProviderError, match="no kind of a group"):
        webhooks.convert("v1/example.com/Widget")
    webhooks.mutate("example.com/v1/Widget")(None)
    with pytest.raises(ProviderError, match="already for /mutate-example-com-v1-widget"):
        webhooks.mutate("example.com/v1/Widget")(None)
    webhooks.convert("example.com/Widget")(None)
    with pytest.raises(ProviderError, match="already that converts"):
        webhooks.convert("example.com/Widget")(None)
    assert webhooks.paths == ["/convert", "/mutate-example-com-v1-widget"]
    with pytest.raises(ProviderError, match="status 500"):
        Denied("no", code=500)
    files.certificate.unlink()
    with pytest.raises(ProviderError, match=r"tls.crt with the key .* cannot be used: No such file"):
        await webhooks.run()
