"""Logs, commands and forwarded ports of pods, against a server on the loopback that speaks as kubelets do."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

import pytest
import pytest_asyncio

from kplane.provider import ApiError, Client, Forbidden, NotFound, ProviderError, Unreachable
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.errors import AnswerTooLarge, LeaseLost, ListenFailed

from . import kubelet as fake
from .kubelet import STATUS, STDERR, STDOUT, SUCCESS, Command, exit_code

MIB = 1 << 20


@pytest_asyncio.fixture
async def kubelet(tmp_path):
    async with fake.serving(tmp_path) as found:
        yield found


@pytest_asyncio.fixture
async def client(kubelet):
    async with Client(kubelet.config, timeout_seconds=5.0) as made:
        yield made


def writes(*parts, then=None):
    async def log(response):
        for part in parts:
            await response.write(part)
        if then is not None:
            await then()

    return log


def tasks():
    return {task.get_name() for task in asyncio.all_tasks() if "pod web" in task.get_name()}


class TestLogs:
    async def test_logs_returns_text_and_sends_the_options(self, kubelet, client):
        kubelet.log = writes(b"one\ntw\xff\n")
        text = await client.pods.logs(
            "web", namespace="default", container="main", tail_lines=2, since_seconds=60, timestamps=True, previous=True
        )
        assert text == "one\ntw�\n"
        asked = kubelet.asked[0]
        assert dict(asked.query) == {
            "container": "main",
            "tailLines": "2",
            "sinceSeconds": "60",
            "timestamps": "true",
            "previous": "true",
        }
        assert asked.headers["Authorization"] == "Bearer secret"

    async def test_logs_raises_above_the_size_limit(self, kubelet):
        kubelet.log = writes(b"x" * 2000)
        async with Client(kubelet.config, limits=AnswerLimits(answer_bytes=1000)) as client:
            with pytest.raises(AnswerTooLarge):
                await client.pods.logs("web", namespace="default")

    async def test_logs_raises_without_a_namespace(self, client):
        with pytest.raises(ProviderError, match="namespace is needed"):
            await client.pods.logs("web")


class TestLogLines:
    async def test_log_lines_follow_yields_each_line_at_once(self, kubelet, client, eventually):
        more = asyncio.Event()

        async def log(response):
            await response.write(b"one\ntw")
            await more.wait()
            await response.write(b"o\n\nlast")

        kubelet.log = log
        async with client.pods.log_lines("web", namespace="default", follow=True) as lines:
            assert await anext(lines) == "one"
            more.set()
            assert [line async for line in lines] == ["two", "", "last"]
        assert kubelet.asked[0].query["follow"] == "true"

    async def test_log_lines_follow_has_no_deadline_and_closes_on_exit(self, kubelet, eventually):
        kubelet.log = writes(b"one\n", then=fake.forever)
        async with Client(kubelet.config, timeout_seconds=0.2) as client:
            async with client.pods.log_lines("web", namespace="default", follow=True) as lines:
                assert await anext(lines) == "one"
                following = asyncio.ensure_future(anext(lines))
                done, _ = await asyncio.wait({following}, timeout=0.5)
                assert not done
                following.cancel()
                await asyncio.wait({following})
            await eventually(lambda: kubelet.open == 0)

    async def test_log_lines_follow_waits_for_the_header_of_a_quiet_log(self, kubelet):
        kubelet.late_header, speaks = True, asyncio.Event()

        async def log(response):
            await speaks.wait()
            await response.write(b"one\n")

        async def follow(client):
            async with client.pods.log_lines("web", namespace="default", tail_lines=0, follow=True) as lines:
                return [line async for line in lines]

        kubelet.log = log
        async with Client(kubelet.config, timeout_seconds=0.2) as client:
            following = asyncio.create_task(follow(client))
            done, _ = await asyncio.wait({following}, timeout=0.5)
            assert not done
            speaks.set()
            assert await following == ["one"]

    async def test_log_lines_follow_closes_when_cancelled_before_the_header(self, kubelet, client, eventually):
        kubelet.late_header, kubelet.log = True, fake.forever
        following = asyncio.create_task(client.pods.log_lines("web", namespace="default", follow=True).__aenter__())
        await eventually(lambda: kubelet.open == 1)
        following.cancel()
        await asyncio.wait({following})
        assert following.cancelled()
        await eventually(lambda: kubelet.open == 0)

    async def test_log_lines_raises_without_a_header_in_time(self, kubelet):
        kubelet.late_header, kubelet.log = True, fake.forever
        async with Client(kubelet.config, timeout_seconds=0.2) as client:
            with pytest.raises(Unreachable, match="in time"):
                async with client.pods.log_lines("web", namespace="default"):
                    pass

    async def test_log_lines_raises_when_the_log_is_truncated(self, kubelet):
        kubelet.log = writes(b"one\ntwo\nth", then=fake.forever)
        async with (
            Client(kubelet.config, timeout_seconds=0.3) as client,
            client.pods.log_lines("web", namespace="default") as lines,
        ):
            assert [await anext(lines), await anext(lines)] == ["one", "two"]
            with pytest.raises(Unreachable, match="in time"):
                await anext(lines)

    async def test_log_lines_cuts_a_long_line(self, kubelet, client):
        kubelet.log = writes(*[b"x" * 1024] * (2 * 1024), b"\nshort\n\nlast")
        async with client.pods.log_lines("web", namespace="default") as lines:
            first, *rest = [line async for line in lines]
        assert first == "x" * MIB + " …"
        assert rest == ["short", "", "last"]

    async def test_log_lines_raises_the_refusal_of_the_server(self, kubelet, client):
        kubelet.refusal = 403
        with pytest.raises(Forbidden, match="pods is forbidden"):
            async with client.pods.log_lines("web", namespace="default"):
                pass

    async def test_log_lines_keeps_errors_of_the_caller(self, kubelet, client):
        kubelet.log = writes(b"one\n")
        with pytest.raises(ValueError, match="mine"):
            async with client.pods.log_lines("web", namespace="default"):
                raise ValueError("mine")


async def shout(command: Command) -> None:
    """Return stdin in capitals, write to stderr, and exit with code 3."""
    async for data in command.stdin():
        await command.send(STDOUT, data.upper())
    await command.send(STDERR, b"done")
    await command.end(exit_code(3))


class TestExec:
    async def test_exec_returns_output_and_exit_code(self, kubelet, client):
        kubelet.run = shout
        content = b"hello " * 100_000
        result = await client.pods.exec("web", ["tr", "a-z"], namespace="default", container="main", stdin=content)
        assert (result.exit_code, result.stdout, result.stderr) == (3, content.upper(), b"done")
        asked = kubelet.asked[0]
        assert asked.query.getall("command") == ["tr", "a-z"]
        assert {key: asked.query[key] for key in ("container", "stdin", "stdout", "stderr")} == {
            "container": "main",
            "stdin": "true",
            "stdout": "true",
            "stderr": "true",
        }
        assert asked.headers["Authorization"] == "Bearer secret"

    async def test_exec_returns_output_that_follows_the_status(self, kubelet, client):
        async def run(command):
            await command.end(SUCCESS)
            await command.send(STDOUT, b"late")

        kubelet.run = run
        result = await client.pods.exec("web", ["true"], namespace="default")
        assert (result.exit_code, result.stdout) == (0, b"late")
        assert "stdin" not in kubelet.asked[0].query

    async def test_exec_v4_returns_the_exit_code(self, kubelet, client):
        async def run(command):
            await command.end(exit_code(7))

        kubelet.protocols, kubelet.run = ("v4.channel.k8s.io",), run
        assert (await client.pods.exec("web", ["false"], namespace="default")).exit_code == 7

    async def test_exec_v4_with_stdin_raises_instead_of_waiting(self, kubelet, client):
        kubelet.protocols, kubelet.run = ("v4.channel.k8s.io",), shout
        with pytest.raises(ProviderError, match=r"failed to close stdin of .*update it to Kubernetes 1\.30"):
            await client.pods.exec("web", ["cat"], namespace="default", stdin=b"x")

    async def test_exec_raises_when_the_server_offers_no_protocol(self, kubelet, client):
        kubelet.protocols, kubelet.run = (), shout
        with pytest.raises(Unreachable, match=r"does not offer v5\.channel\.k8s\.io or v4"):
            await client.pods.exec("web", ["cat"], namespace="default")

    async def test_exec_raises_when_the_command_cannot_run(self, kubelet, client):
        async def run(command):
            await command.end({"status": "Failure", "reason": "InternalError", "code": 500, "message": "no such file"})

        kubelet.run = run
        with pytest.raises(ApiError, match="no such file") as caught:
            await client.pods.exec("web", ["nosuch"], namespace="default")
        assert caught.value.status == 500

    @pytest.mark.parametrize("sent", [b"", b"no JSON", b"[]"])
    async def test_exec_raises_without_a_status(self, kubelet, client, sent):
        async def run(command):
            if sent:
                await command.send(STATUS, sent)

        kubelet.run = run
        with pytest.raises(Unreachable, match="the stream ended with"):
            await client.pods.exec("web", ["true"], namespace="default")

    async def test_exec_raises_the_refusal_of_the_server(self, kubelet, client):
        kubelet.refusal = 403
        with pytest.raises(Forbidden, match="pods is forbidden"):
            await client.pods.exec("web", ["true"], namespace="default")

    async def test_exec_raises_at_the_deadline_and_closes_the_connection(self, kubelet, client, eventually):
        kubelet.run = fake.forever
        with pytest.raises(
            Unreachable, match=r"failed to run 'sleep' in pod web: it did not end within 0\.2 s"
        ) as caught:
            await client.pods.exec("web", ["sleep", "60"], namespace="default", timeout_seconds=0.2)
        assert caught.value.timed_out
        await eventually(lambda: kubelet.open == 0)

    async def test_exec_raises_above_the_output_limit(self, kubelet):
        async def run(command):
            for _ in range(100):
                await command.send(STDOUT, b"x" * 1000)
            await command.end(SUCCESS)

        kubelet.run = run
        async with Client(kubelet.config, limits=AnswerLimits(answer_bytes=10_000)) as client:
            with pytest.raises(AnswerTooLarge):
                await client.pods.exec("web", ["yes"], namespace="default")

    async def test_exec_ends_when_the_command_does_not_read_stdin(self, kubelet, client):
        async def run(command):
            await command.end(SUCCESS)

        kubelet.run = run
        result = await client.pods.exec("web", ["true"], namespace="default", stdin=b"x" * (8 * MIB))
        assert result.exit_code == 0

    async def test_exec_sends_no_command_when_writes_are_refused(self, kubelet):
        def lost():
            raise LeaseLost("gone")

        async with Client(kubelet.config, before_write=lost) as client:
            with pytest.raises(LeaseLost):
                await client.pods.exec("web", ["true"], namespace="default")
        assert kubelet.asked == []

    @pytest.mark.parametrize("command", ["ls -l", []])
    async def test_exec_refuses_a_command_that_is_no_list(self, client, command):
        with pytest.raises(ProviderError, match="no list of arguments"):
            await client.pods.exec("web", command, namespace="default")


class TestOpenExec:
    async def test_open_exec_exchanges_data_with_the_command(self, kubelet, client, eventually):
        kubelet.run = shout
        async with client.pods.open_exec("web", ["sh"], namespace="default", stdin=True) as process:
            await process.write(b"one")
            assert await anext(process) == ("stdout", b"ONE")
            assert process.exit_code is None
            await process.close_stdin()
            assert await process.wait() == 3
        await eventually(lambda: kubelet.open == 0)

    async def test_open_exec_closes_on_exit_and_keeps_the_error(self, kubelet, client, eventually):
        kubelet.run = fake.forever

        async def fail():
            async with client.pods.open_exec("web", ["sh"], namespace="default"):
                await eventually(lambda: kubelet.open == 1)
                raise OSError("mine")

        with pytest.raises(OSError, match="mine"):
            await fail()
        await eventually(lambda: kubelet.open == 0)

    async def test_open_exec_ends_when_the_client_closes(self, kubelet, client, eventually):
        kubelet.run = fake.forever
        async with client.pods.open_exec("web", ["sh"], namespace="default") as process:
            waiting = asyncio.ensure_future(process.wait())
            await eventually(lambda: kubelet.open == 1)
            await client.aclose()
            with pytest.raises(Unreachable):
                await waiting


def loopback_addresses():
    """Return the addresses of `localhost` that this machine has."""
    found = []
    for family, _, _, _, address in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM):
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.bind(address)
            found.append(address[0])
    return found


async def ask(address, content):
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(content)
        return await reader.readexactly(len(content))
    finally:
        writer.transport.abort()


class TestPortForward:
    async def test_port_forward_carries_connections_of_every_address(self, kubelet, client, eventually):
        kubelet.serve = fake.echo
        content = b"there and back " * 100_000
        async with client.pods.port_forward("web", 8080, namespace="default") as forward:
            for address in loopback_addresses():
                assert await ask((address, forward.port), content) == content
            assert await asyncio.gather(*(ask(("localhost", forward.port), b"%d" % number) for number in range(5))) == [
                b"%d" % number for number in range(5)
            ]
        assert {asked.query["ports"] for asked in kubelet.asked} == {"8080"}
        assert kubelet.asked[0].headers["Sec-WebSocket-Protocol"] == "v4.channel.k8s.io"
        await eventually(lambda: kubelet.open == 0)

    async def test_port_forward_ends_tasks_and_connections_on_exit(self, kubelet, client, eventually):
        kubelet.serve = fake.echo
        async with client.pods.port_forward("web", 8080, namespace="default") as forward:
            reader, writer = await asyncio.open_connection("localhost", forward.port)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            assert tasks()
        assert not tasks()
        assert await reader.read() == b""
        writer.transport.abort()
        await eventually(lambda: kubelet.open == 0)
        with pytest.raises(OSError):
            await asyncio.open_connection("localhost", forward.port)

    async def test_port_forward_closes_a_connection_that_the_pod_closed(self, kubelet, client):
        async def serve(socket):
            await socket.send_bytes(b"\0bye")

        kubelet.serve = serve
        async with client.pods.port_forward("web", 8080, namespace="default") as forward:
            reader, writer = await asyncio.open_connection("localhost", forward.port)
            assert await reader.read() == b"bye"
            writer.close()
            await writer.wait_closed()
            assert forward.error == ""

    async def test_port_forward_passes_the_response_after_local_eof(self, kubelet, client, eventually):
        async def serve(socket):
            message = await socket.receive()
            await socket.send_bytes(message.data)
            await socket.receive()

        kubelet.serve = serve
        async with client.pods.port_forward("web", 8080, namespace="default") as forward:
            reader, writer = await asyncio.open_connection("localhost", forward.port)
            writer.write(b"question")
            writer.write_eof()
            assert await reader.readexactly(8) == b"question"
            writer.close()
            await writer.wait_closed()

    async def test_port_forward_reports_a_closed_port_of_the_pod(self, kubelet, client, caplog):
        async def serve(socket):
            await socket.send_bytes(b"\1connection refused")

        kubelet.serve = serve
        async with client.pods.port_forward("web", 8080, namespace="default") as forward:
            reader, writer = await asyncio.open_connection("localhost", forward.port)
            assert await reader.read() == b""
            writer.transport.abort()
            assert forward.error == "connection refused"
        assert "failed to forward a connection to port 8080 of pod web: connection refused" in caplog.text

    async def test_port_forward_reports_the_refusal_of_the_server(self, kubelet, client):
        kubelet.refusal = 403
        async with client.pods.port_forward("web", 8080, namespace="default") as forward:
            reader, writer = await asyncio.open_connection("localhost", forward.port)
            assert await reader.read() == b""
            writer.transport.abort()
            assert "pods is forbidden" in forward.error

    async def test_port_forward_raises_for_a_missing_or_pending_pod(self, kubelet, client):
        with pytest.raises(NotFound):
            async with client.pods.port_forward("missing", 8080, namespace="default"):
                pass
        kubelet.phase = "Pending"
        with pytest.raises(ProviderError, match="it is Pending; wait until it runs"):
            async with client.pods.port_forward("web", 8080, namespace="default"):
                pass

    async def test_port_forward_raises_when_the_port_is_in_use(self, client):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ListenFailed, match=f"failed to listen on localhost:{port}"):
                async with client.pods.port_forward("web", 8080, namespace="default", local_port=port):
                    pass

    async def test_port_forward_picks_another_port_when_ipv6_has_it_in_use(self, client, monkeypatch):
        """The free port of IPv4 may be in use on IPv6; then both listen on another port."""
        taken, real = [], socket.create_server

        def create_server(address, **options):
            if options["family"] == socket.AF_INET6 and not taken:
                taken.append(address[1])
                raise OSError(errno.EADDRINUSE, "Address already in use")
            return real(address, **options)

        monkeypatch.setattr(socket, "create_server", create_server)
        loop = asyncio.get_running_loop()

        async def both(host, port, **_):
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
                (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            ]

        monkeypatch.setattr(loop, "getaddrinfo", both)
        async with client.pods.port_forward("web", 8080, namespace="default") as forward:
            assert taken
            assert forward.port != taken[0]


class TestPortForwardService:
    """A port of a Service leads to a pod that is ready, as with `kubectl port-forward service/...`."""

    @pytest.fixture
    def service(self, kubelet):
        kubelet.serve = fake.echo
        kubelet.service = {
            "selector": {"app": "web", "tier": "front"},
            "ports": [{"port": 80, "targetPort": "web"}, {"port": 443, "targetPort": 8443}, {"port": 90}],
        }
        kubelet.pods = [fake.pod("web-0")]
        return kubelet.service

    @pytest.mark.parametrize(("port", "expected"), [(80, "8080"), (443, "8443"), (90, "90")])
    async def test_connects_to_the_target_port(self, kubelet, client, service, port, expected):
        async with client.pods.port_forward_service("web", port, namespace="default") as forward:
            assert await ask(("localhost", forward.port), b"there") == b"there"
        assert kubelet.asked[0].query["ports"] == expected
        assert kubelet.asked[0].match_info["pod"] == "web-0"
        assert set(kubelet.selectors) == {"app=web,tier=front"}

    async def test_connects_to_the_port_itself_if_the_service_is_headless(self, kubelet, client, service):
        service["clusterIP"] = "None"
        async with client.pods.port_forward_service("web", 443, namespace="default") as forward:
            assert await ask(("localhost", forward.port), b"there") == b"there"
        assert kubelet.asked[0].query["ports"] == "443"

    async def test_finds_the_named_port_of_a_sidecar(self, kubelet, client, service):
        spec = kubelet.pods[0]["spec"]
        spec["initContainers"] = [{**spec["containers"][0], "restartPolicy": "Always"}]
        spec["containers"] = [{"name": "other"}]
        async with client.pods.port_forward_service("web", 80, namespace="default") as forward:
            assert await ask(("localhost", forward.port), b"there") == b"there"
        assert kubelet.asked[0].query["ports"] == "8080"

    async def test_takes_the_pod_that_is_ready_longest(self, kubelet, client, service):
        kubelet.pods = [
            fake.pod("ending", ending=True, since="2020-01-01T00:00:00Z"),
            fake.pod("waiting", ready=False, since="2020-01-01T00:00:00Z"),
            fake.pod("young", since="2026-02-01T00:00:00Z"),
            fake.pod("old", since="2026-01-01T00:00:00Z"),
        ]
        async with client.pods.port_forward_service("web", 80, namespace="default") as forward:
            assert await ask(("localhost", forward.port), b"there") == b"there"
        assert [request.match_info["pod"] for request in kubelet.asked] == ["old"]

    async def test_takes_a_new_pod_for_the_next_connection(self, kubelet, client, service):
        async with client.pods.port_forward_service("web", 80, namespace="default") as forward:
            assert await ask(("localhost", forward.port), b"one") == b"one"
            kubelet.pods = [fake.pod("web-0", ending=True), fake.pod("web-1")]
            assert await ask(("localhost", forward.port), b"two") == b"two"
        assert [request.match_info["pod"] for request in kubelet.asked] == ["web-0", "web-1"]

    async def test_takes_another_pod_if_a_pod_cannot_be_reached(self, kubelet, client, service):
        kubelet.pods, kubelet.unreachable = [fake.pod("web-0"), fake.pod("web-1")], {"web-0"}
        async with client.pods.port_forward_service("web", 80, namespace="default") as forward:
            assert await ask(("localhost", forward.port), b"there") == b"there"
            assert forward.error == ""
        assert [request.match_info["pod"] for request in kubelet.asked][-1] == "web-1"

    async def test_reports_the_error_if_no_pod_can_be_reached(self, kubelet, client, service, caplog):
        kubelet.unreachable = {"web-0"}
        async with client.pods.port_forward_service("web", 80, namespace="default") as forward:
            reader, writer = await asyncio.open_connection("localhost", forward.port)
            assert await reader.read() == b""
            writer.transport.abort()
            assert "error dialing backend" in forward.error
        assert "failed to forward a connection to port 80 of Service web: " in caplog.text

    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"selector": {}}, "Service web has no selector"),
            ({"ports": []}, "Service web has no port 80"),
            ({"ports": [{"port": 80, "targetPort": "other"}]}, "leads to port 'other', which no pod that is ready has"),
        ],
    )
    async def test_raises_for_a_service_without_selector_or_matching_port(self, client, service, change, error):
        service.update(change)
        with pytest.raises(ProviderError, match=error):
            async with client.pods.port_forward_service("web", 80, namespace="default"):
                pass

    async def test_raises_if_no_pod_is_ready(self, kubelet, client, service):
        kubelet.pods = [fake.pod("web-0", ready=False)]
        with pytest.raises(ProviderError, match="Service web has no pod that is ready; wait until one is"):
            async with client.pods.port_forward_service("web", 80, namespace="default"):
                pass

    async def test_raises_if_the_service_is_missing(self, client):
        with pytest.raises(NotFound):
            async with client.pods.port_forward_service("web", 80, namespace="default"):
                pass
