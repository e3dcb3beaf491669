"""The client against servers with faults that a real API server cannot be made to show."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import gzip
import json
import os
import re
import socket
import time

import pytest

from kplane.provider import ApiError, Client, ClusterConfig, ProviderError, Unreachable
from kplane.provider.client.resources import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES
from kplane.provider.errors import KubeconfigError, LeaseLost, ServerError, TooManyRequests

OBJECT = {"metadata": {"name": "a", "resourceVersion": "1"}}


def sockets():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(("socket:", "/memfd")):
            found.add((name, target))
    return found


def always(content):
    async def answer(asked, writer):
        writer.write(content)

    return answer


async def failure(server, *, error=Unreachable, timeout_seconds=20.0):
    async with Client(server.config, timeout_seconds=timeout_seconds) as client:
        with pytest.raises(error) as caught:
            await client.get(NAMESPACES, "a")
    return caught.value


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html", "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "protocol"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"metadata":[]}', "protocol"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{"metadata":{"name":[]}}', "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!", "connect"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "protocol"),
        (b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere.test/\r\nContent-Length: 0\r\n\r\n", "protocol"),
    ],
)
async def test_invalid_answer_raises_unreachable_with_kind(fault_server, content, kind):
    server = await fault_server(always(content))
    error = await failure(server)
    assert (error.kind, error.reason) == (kind, "EndpointUnreachable")
    assert server.config.server in str(error)


async def test_client_does_not_follow_redirect_with_token(fault_server, tools):
    other = await fault_server(always(tools.http(OBJECT)))
    moved = f"Location: {other.config.server}/\r\n"
    server = await fault_server(always(tools.http(b"", status=307, headers=moved)))
    error = await failure(dataclasses.replace(server, config=dataclasses.replace(server.config, token="secret")))
    assert "not followed" in str(error)
    assert other.asked == []
    assert server.asked[0].headers["authorization"] == "Bearer secret"


async def test_truncated_answer_raises_unreachable(fault_server):
    async def answer(asked, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{")
        await writer.drain()
        writer.transport.abort()

    assert (await failure(await fault_server(answer))).kind == "connect"


async def test_answer_above_size_limit_is_refused(fault_server, tools):
    bomb = gzip.compress(bytes(64 * 1024**2 + 1))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    server = await fault_server(always(head.encode() + bomb))
    async with Client(server.config, timeout_seconds=60) as client:
        with pytest.raises(Unreachable, match="more than 64 MiB") as caught:
            await client.get(NAMESPACES, "a")
    assert caught.value.kind == "protocol"


async def test_call_of_silent_server_ends_at_deadline(fault_server):
    async def answer(asked, writer):
        await asyncio.Event().wait()

    server = await fault_server(answer)
    begun = time.monotonic()
    error = await failure(server, timeout_seconds=0.5)
    assert time.monotonic() - begun > 0.45
    assert error.timed_out


async def test_unreachable_reports_whether_write_was_sent(fault_server):
    async def answer(asked, writer):
        await asyncio.Event().wait()

    server = await fault_server(answer)
    assert not (await failure(server, timeout_seconds=0.2)).write_sent
    for before_write in (None, lambda: None):
        async with Client(server.config, timeout_seconds=0.5, before_write=before_write) as client:
            for write in (client.create(NAMESPACES, OBJECT), client.delete(NAMESPACES, "a")):
                with pytest.raises(Unreachable, match="no answer") as caught:
                    await write
                assert caught.value.timed_out
                assert caught.value.write_sent


async def test_unreachable_before_connection_reports_no_write_sent():
    silent = socket.create_server(("127.0.0.1", 0))
    config = ClusterConfig(f"https://127.0.0.1:{silent.getsockname()[1]}")
    for patience in ({"timeout_seconds": 0.3}, {"timeout_seconds": 3600.0, "connect_timeout_seconds": 0.3}):
        async with Client(config, **patience) as client:
            with pytest.raises(Unreachable) as caught:
                await client.create(NAMESPACES, OBJECT)
        assert caught.value.timed_out
        assert not caught.value.write_sent
    silent.close()


async def test_unfinished_tls_handshake_ends_at_connect_timeout():
    silent = socket.create_server(("127.0.0.1", 0))
    port = silent.getsockname()[1]
    # The call time-out is longer than this test, so the connect time-out ends the call.
    patience = {"timeout_seconds": 3600.0, "connect_timeout_seconds": 0.3}
    async with Client(ClusterConfig(f"https://127.0.0.1:{port}"), **patience) as client:
        with pytest.raises(Unreachable, match="no connection") as caught:
            await client.probe()
    assert caught.value.timed_out
    silent.close()


async def test_closed_port_raises_unreachable(fault_server):
    async with Client(ClusterConfig("https://127.0.0.1:1")) as client:
        with pytest.raises(Unreachable) as caught:
            await client.probe()
    assert caught.value.kind == "connect"


async def test_client_verifies_ca_host_and_expiry_of_certificate(fault_server, tools):
    good = await fault_server(always(tools.http(OBJECT)))
    stranger = dataclasses.replace(good.config, ca_data=tools.Authority().pem)
    wrong_ca = await failure(dataclasses.replace(good, config=stranger))
    assert "certificate not signed by the CA of the kubeconfig" in str(wrong_ca)

    authority = tools.Authority()
    other_host = await fault_server(always(b""), issued=authority.issue(address="10.9.9.9"))
    expired = await fault_server(always(b""), issued=authority.issue(hours=-1))
    for server, sentence in ((other_host, "not valid for this host"), (expired, "has expired")):
        trusting = dataclasses.replace(server.config, ca_data=authority.pem)
        error = await failure(dataclasses.replace(server, config=trusting))
        assert sentence in str(error)
        assert (error.kind, error.reason) == ("tls", "CertificateInvalid")
        assert server.asked == []

    named = dataclasses.replace(other_host.config, ca_data=authority.pem, tls_server_name="served.test")
    other_host.answer = always(tools.http(OBJECT))
    async with Client(named) as client:
        assert (await client.get(NAMESPACES, "a"))["kind"] == "Namespace"


async def test_certificate_of_unknown_ca_names_the_trust_store_without_a_ca(fault_server, tools):
    server = await fault_server(always(tools.http(OBJECT)))
    error = await failure(dataclasses.replace(server, config=dataclasses.replace(server.config, ca_data=None)))
    assert str(error).endswith("certificate not signed by a CA of this system, and the kubeconfig has no CA")
    assert (error.kind, error.reason) == ("tls", "CertificateInvalid")


async def test_certificate_from_the_future_names_both_clocks(fault_server, tools):
    authority = tools.Authority()
    # Certificates of this authority begin three hours before the clock of their issuer.
    server = await fault_server(always(tools.http(OBJECT)), issued=authority.issue(ahead_hours=24))
    before = dt.datetime.now(dt.UTC)
    trusting = dataclasses.replace(server.config, ca_data=authority.pem, token="secret")
    error = await failure(dataclasses.replace(server, config=trusting))
    told = re.search(r"valid from (\S+) only, and the clock of this machine says (\S+); compare the clocks", str(error))
    assert told is not None, str(error)
    begins, present = (dt.datetime.strptime(each, "%Y-%m-%dT%H:%MZ").replace(tzinfo=dt.UTC) for each in told.groups())
    assert abs(begins - before - dt.timedelta(hours=21)) < dt.timedelta(minutes=2)
    assert abs(present - before) < dt.timedelta(minutes=2)
    assert (error.kind, error.reason) == ("tls", "CertificateInvalid")
    assert server.asked == []

    stranger = dataclasses.replace(trusting, ca_data=tools.Authority().pem)
    assert "not signed" in str(await failure(dataclasses.replace(server, config=stranger)))


async def test_server_without_tls_is_not_reported_as_bad_certificate(fault_server):
    server = await fault_server(always(b""), plain=b"HTTP/1.1 400 Bad Request\r\n\r\n")
    error = await failure(server)
    assert (error.kind, error.reason) == ("tls", "EndpointUnreachable")


async def test_client_retries_429_with_retry_after(fault_server, tools):
    async def answer(asked, writer):
        busy = tools.http({"kind": "Status", "message": "busy"}, status=429, headers="Retry-After: 0\r\n")
        writer.write(busy if len(server.asked) < 2 else tools.http(OBJECT))

    server = await fault_server(answer)
    async with Client(server.config) as client:
        assert (await client.get(NAMESPACES, "a"))["metadata"]["name"] == "a"
    assert len(server.asked) == 2


async def test_retry_after_beyond_deadline_raises_at_once(fault_server, tools):
    server = await fault_server(always(tools.http({"kind": "Status"}, status=429, headers="Retry-After: 9999\r\n")))
    # A client that waited for Retry-After or the time-out would exceed the time of the test.
    error = await failure(server, error=TooManyRequests, timeout_seconds=3600.0)
    assert error.retry_after_seconds == 9999
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "body", [b"<html>bad gateway</html>", b"", b'{"kind":"Status","message":7,"details":[]}', b"[1]"]
)
async def test_error_page_of_proxy_raises_api_error(fault_server, tools, body):
    server = await fault_server(always(tools.http(body, status=502)))
    error = await failure(server, error=ServerError)
    assert error.status == 502
    assert isinstance(error, ApiError)


async def test_request_path_begins_with_path_of_server(fault_server, tools):
    server = await fault_server(always(tools.http(OBJECT)))
    below = server.config.with_server(f"{server.config.server}/clusters/x/control-plane/")
    async with Client(below) as client:
        await client.get(CONFIG_MAPS, "a", namespace="ns")
        await client.request("GET", "/version", params={"a b": "c&d", "none": None, "flag": True})
    assert [asked.target for asked in server.asked] == [
        "/clusters/x/control-plane/api/v1/namespaces/ns/configmaps/a",
        "/clusters/x/control-plane/version?a%20b=c%26d&flag=true",
    ]


async def test_client_reads_token_file_again_on_401(fault_server, tools, tmp_path):
    file = tmp_path / "token"
    file.write_text("old\n")

    async def answer(asked, writer):
        good = asked.headers.get("authorization") == "Bearer new"
        writer.write(tools.http(OBJECT) if good else tools.http({"kind": "Status"}, status=401))

    server = await fault_server(answer)
    async with Client(dataclasses.replace(server.config, token_file=file)) as client:
        with pytest.raises(ApiError):
            await client.get(NAMESPACES, "a")
        file.write_text("new\n")
        await client.get(NAMESPACES, "a")
        assert len(server.asked) == 3
        file.unlink()
        await client.get(NAMESPACES, "a")
    async with Client(dataclasses.replace(server.config, token_file=file)) as client:
        with pytest.raises(KubeconfigError, match="token"):
            await client.get(NAMESPACES, "a")


async def test_renewed_credentials_keep_open_watches(fault_server, tools):
    issued = tools.Authority().issue("client-a")
    renewed = tools.Authority().issue("client-a")
    more = asyncio.Event()

    async def answer(asked, writer):
        if "watch=true" not in asked.target:
            writer.write(tools.http(OBJECT))
            return
        writer.write(tools.stream_head())
        await more.wait()
        writer.write(tools.chunk(b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n'))

    server = await fault_server(answer)
    first = dataclasses.replace(server.config, client_certificate=issued.certificate, client_key=issued.key)
    second = dataclasses.replace(first, client_certificate=renewed.certificate, client_key=renewed.key)
    async with Client(first) as client:
        async with client.watch(NAMESPACES, resource_version="1") as watch:
            await watch.open()
            await client.update(second)
            await client.get(NAMESPACES, "a")
            more.set()
            assert (await anext(watch)).object["metadata"]["name"] == "a"
        with pytest.raises(ProviderError, match="another cluster"):
            await client.update(dataclasses.replace(second, token="x"))


async def test_updated_ca_applies_to_next_connection(fault_server, tools):
    server = await fault_server(always(tools.http(OBJECT)))
    new = tools.Authority("another-ca").pem
    async with Client(server.config) as client:
        await client.get(NAMESPACES, "a")
        await client.update(dataclasses.replace(server.config, ca_data=new + server.authority.pem))
        await client.get(NAMESPACES, "a")
        await client.update(dataclasses.replace(server.config, ca_data=new))
        with pytest.raises(Unreachable) as caught:
            await client.get(NAMESPACES, "a")
        assert caught.value.reason == "CertificateInvalid"


async def test_closed_client_leaves_no_socket(fault_server, tools, eventually):
    async def answer(asked, writer):
        if "watch=true" in asked.target:
            writer.write(tools.stream_head())
            await asyncio.sleep(60)
        if asked.target.endswith("silent"):
            await asyncio.sleep(60)
        writer.write(tools.http(OBJECT))

    server = await fault_server(answer)
    before = sockets()
    client = Client(server.config)
    watch = client.watch(NAMESPACES, resource_version="1")
    await watch.open()
    await asyncio.gather(*(client.get(NAMESPACES, "a") for _ in range(5)))
    assert len(sockets() - before) >= 6
    reading = asyncio.create_task(anext(watch))
    asking = asyncio.create_task(client.get(NAMESPACES, "silent"))
    await eventually(lambda: [asked.target for asked in server.asked], lambda seen: seen[-1].endswith("silent"))
    await client.aclose()
    for waiting in (reading, asking):
        with pytest.raises(ProviderError):
            await asyncio.wait_for(waiting, 60)
    with pytest.raises(ProviderError, match="is closed"):
        await client.get(NAMESPACES, "a")
    # The server's ends of the connections are in this process as well.
    await eventually(lambda: sockets() - before, lambda left: not left)


async def test_closed_client_raises_for_call_waiting_for_credentials(fault_server, tools, monkeypatch, eventually):
    server, waiting = await fault_server(always(tools.http(OBJECT))), asyncio.Event()

    async def current(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            # The call gets its credentials although it was cancelled meanwhile.
            return self._config
        finally:
            waiting.set()

    client = Client(server.config)
    await client.get(NAMESPACES, "a")
    monkeypatch.setattr("kplane.provider.access.credentials.Credentials.current", current)
    asking = asyncio.create_task(client.get(NAMESPACES, "a"))
    await eventually(lambda: client._transport._exchanges)
    await client.aclose()
    with pytest.raises(ProviderError, match="closed"):
        await asking
    assert waiting.is_set()
    assert len(server.asked) == 1


async def test_endless_list_ends_at_deadline(fault_server, tools):
    page = tools.http({"metadata": {"continue": "more"}, "items": []})
    server = await fault_server(always(page))
    async with Client(server.config, timeout_seconds=0.1) as client:
        with pytest.raises(Unreachable) as caught:
            await client.list(NAMESPACES)
    assert caught.value.timed_out


async def test_expired_pages_are_listed_in_one_request(fault_server, tools):
    async def answer(asked, writer):
        if "continue=" in asked.target:
            writer.write(tools.http({"kind": "Status", "reason": "Expired"}, status=410))
        elif "limit=" in asked.target:
            writer.write(tools.http({"metadata": {"continue": "x"}, "items": [OBJECT]}))
        else:
            writer.write(tools.http({"metadata": {"resourceVersion": "9"}, "items": [OBJECT, OBJECT]}))

    server = await fault_server(answer)
    async with Client(server.config) as client:
        found = await client.list(NAMESPACES)
    assert (len(found.items), found.resource_version) == (2, "9")


@pytest.mark.parametrize("call", ["create", "delete"])
async def test_write_is_not_sent_when_check_before_sending_fails(fault_server, tools, call):
    """The check fails if the process was suspended while connecting, and another process acquired its Lease."""
    server, asked = await fault_server(always(tools.http(OBJECT))), []

    def check():
        asked.append("write")
        if len(asked) > 1:
            raise LeaseLost("it is somebody else's")

    async with Client(server.config, before_write=check) as client:
        with pytest.raises(LeaseLost):
            await (client.create(NAMESPACES, OBJECT) if call == "create" else client.delete(NAMESPACES, "a"))
        await client.get(NAMESPACES, "a")
    assert [request.method for request in server.asked] == ["GET"]


async def test_body_that_is_not_json_is_refused_before_sending(fault_server, tools):
    async with Client((await fault_server(always(tools.http(OBJECT)))).config) as client:
        with pytest.raises(ProviderError, match="cannot be sent"):
            await client.create(NAMESPACES, {"metadata": {"name": object()}})


async def test_repeated_failure_has_equal_message(tools):
    """Two processes write the message into a condition. Messages that differ would cause endless writes."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        config = ClusterConfig(f"https://127.0.0.1:{closed.getsockname()[1]}", ca_data=tools.Authority().pem)
        told = set()
        for _ in range(2):
            async with Client(config) as client:
                with pytest.raises(Unreachable) as caught:
                    await client.probe()
                told.add(str(caught.value))
    (words,) = told
    assert words.endswith(f"{config.server} cannot be reached: Connect call failed ('127.0.0.1', {config.server[18:]})")


async def test_delete_sends_its_options(fault_server, tools):
    server = await fault_server(always(tools.http({"kind": "Status", "metadata": {}})))
    async with Client(server.config) as client:
        await client.delete(NAMESPACES, "a")
        await client.delete(
            NAMESPACES, "a", uid="u", resource_version="7", propagation="Orphan", grace_period_seconds=0, dry_run=True
        )
    plain, full = (json.loads(request.body) for request in server.asked)
    assert plain == {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert full == plain | {
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "propagationPolicy": "Orphan",
        "gracePeriodSeconds": 0,
        "dryRun": ["All"],
    }


async def test_get_reads_a_subresource(fault_server, tools):
    server = await fault_server(always(tools.http(OBJECT)))
    async with Client(server.config) as client:
        await client.get(DEPLOYMENTS, "a", namespace="x", subresource="scale")
    assert [request.target for request in server.asked] == ["/apis/apps/v1/namespaces/x/deployments/a/scale"]
