"""Uses the streams of a pod that serves HTTP: its log, a command in it, and its port.

    python examples/pods.py web-0 --port 8080
    python examples/pods.py web-0 --port 80 --service web --namespace shop

It prints the output of a command, and asks three times for `/` through a forwarded port. Then it prints the log, until
the log has such a request. With `--service` the port is that of the Service.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from typing import Final

import aiohttp

from kplane.provider import Client, ClusterConfig

COMMAND: Final = ("sh", "-c", "cat; echo complaint >&2; exit 3")


async def main(given: argparse.Namespace) -> None:
    """Use one stream after the other."""
    path = f"/?{secrets.token_hex(4)}"
    async with asyncio.timeout(60), Client(ClusterConfig.default(context=given.context)) as client:
        done = await client.pods.exec(given.pod, COMMAND, namespace=given.namespace, stdin=b"there and back\n")
        print(f"stdout: {done.stdout.decode()}stderr: {done.stderr.decode()}exit code: {done.exit_code}")
        if given.service is None:
            forwarding = client.pods.port_forward(given.pod, given.port, namespace=given.namespace)
        else:
            forwarding = client.pods.port_forward_service(given.service, given.port, namespace=given.namespace)
        # Each request has a connection of its own.
        connector = aiohttp.TCPConnector(force_close=True)
        async with forwarding as forward, aiohttp.ClientSession(connector=connector) as session:
            for _ in range(3):
                async with session.get(f"http://localhost:{forward.port}{path}") as answer:
                    print(f"answer: {answer.status} {(await answer.text()).rstrip()}")
        # A kubelet answers with the first line. So the log comes after the requests: it could be empty before.
        async with client.pods.log_lines(given.pod, namespace=given.namespace, since_seconds=60, follow=True) as lines:
            async for line in lines:
                print(f"log: {line}")
                if f"GET {path} " in line:
                    break


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pod")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--port", type=int, required=True, help="port of the pod, or of the Service")
    parser.add_argument("--service", help="forward to this Service, in place of the pod")
    parser.add_argument("--context", help="context of the kubeconfig; by default the current one")
    asyncio.run(main(parser.parse_args()))
