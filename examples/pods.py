"""Uses the streams of a pod that serves HTTP: its log, a command in it, and its port.

    python examples/pods.py web-0 --port 8080
    python examples/pods.py web-0 --port 80 --service web --namespace shop

It prints the log of the last minute and the lines that follow, and what a command says. Then it asks for `/` through a
forwarded port, and ends when the log has a request. With `--service` the port is that of the Service.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import sys

import aiohttp

from kplane.provider import Client, ClusterConfig

log = logging.getLogger("pods")

SECONDS = 60.0
SCRIPT = "cat; echo complaint >&2; exit 3"


async def follow(client: Client, given: argparse.Namespace, path: str) -> None:
    """Print the log as it grows, until it has a request for `path`."""
    async with client.pods.log_lines(
        given.pod, namespace=given.namespace, since_seconds=int(SECONDS), follow=True
    ) as lines:
        async for line in lines:
            log.info("log: %s", line)
            if f"GET {path} " in line:
                return


async def run_command(client: Client, given: argparse.Namespace) -> None:
    """Run a command that reads its input, complains, and fails."""
    done = await client.pods.exec(
        given.pod, ["sh", "-c", SCRIPT], namespace=given.namespace, stdin=b"there and back\n", timeout_seconds=SECONDS
    )
    log.info("stdout: %s", done.stdout.decode().rstrip())
    log.info("stderr: %s", done.stderr.decode().rstrip())
    log.info("exit code: %s", done.exit_code)


async def ask(client: Client, given: argparse.Namespace, path: str) -> None:
    """Ask three times through one forwarded port, each time by a connection of its own."""
    if given.service is None:
        forwarding = client.pods.port_forward(given.pod, given.port, namespace=given.namespace)
    else:
        forwarding = client.pods.port_forward_service(given.service, given.port, namespace=given.namespace)
    async with forwarding as forward:
        for _ in range(3):
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://localhost:{forward.port}{path}") as answer,
            ):
                log.info("answer: %s %s", answer.status, (await answer.text()).rstrip())


async def main(given: argparse.Namespace) -> None:
    """Follow the log, and do the rest meanwhile."""
    path = f"/?{secrets.token_hex(4)}"
    async with (
        asyncio.timeout(SECONDS),
        Client(ClusterConfig.default(context=given.context)) as client,
        asyncio.TaskGroup() as group,
    ):
        _ = group.create_task(follow(client, given, path), name="follow the log")
        await run_command(client, given)
        await ask(client, given, path)


def read_command_line() -> argparse.Namespace:
    """Read which pod to use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pod")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--port", type=int, required=True, help="port of the pod, or of the Service")
    parser.add_argument("--service", help="forward to this Service, in place of the pod")
    parser.add_argument("--context", help="context of the kubeconfig; by default the current one")
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    log.setLevel(logging.INFO)
    asyncio.run(main(read_command_line()))
