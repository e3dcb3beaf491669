"""Example of pods: its program with a fake kubelet. The end-to-end suite uses a real kubelet."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from tests.provider import kubelet as fake

from .conftest import EXAMPLES


@pytest.fixture
async def kubelet(tmp_path):
    """Fake kubelet with a pod that serves a page and logs each request."""
    logged: asyncio.Queue[bytes] = asyncio.Queue()

    async def run(command):
        async for data in command.stdin():
            await command.send(fake.STDOUT, data)
        await command.send(fake.STDERR, b"complaint\n")
        await command.end(fake.exit_code(3))

    async def serve(socket):
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            request += (await socket.receive_bytes())[1:]
        logged.put_nowait(request.splitlines()[0] + b"\n")
        await socket.send_bytes(b"\0HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nserved\n")

    async def log(response):
        await response.write(b"started\n")
        while True:
            await response.write(await logged.get())

    async with fake.serving(tmp_path) as kubelet:
        kubelet.run, kubelet.serve, kubelet.log = run, serve, log
        kubelet.service = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "web"}]}
        kubelet.pods = [fake.pod("web-0")]
        yield kubelet


@pytest.mark.parametrize("options", [("--port=8080",), ("--port=80", "--service=web")], ids=["pod", "service"])
async def test_program_runs_command_reads_port_and_follows_log(kubelet, tmp_path, options):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(kubelet.config.to_kubeconfig()))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, EXAMPLES / "pods.py", "web-0", *options),
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, errors) == (0, b"")
    *printed, last = output.decode().splitlines()
    assert printed == [
        "stdout: there and back",
        "stderr: complaint",
        "exit code: 3",
        *["answer: 200 served"] * 3,
        "log: started",
    ]
    assert last.startswith("log: GET /?")
