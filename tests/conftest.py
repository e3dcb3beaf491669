"""Fixtures that every test may use."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings

pytest_plugins = ["kplane.testing.management"]

# The duration of an example depends on the load of the machine, so examples have no deadline. `make test` tries the
# same examples in each run. The nightly run tries new examples, and a failure prints a blob that reproduces it.
settings.register_profile("kplane", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("nightly", deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kplane"))

_LONGEST_ID = 80


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a module in the same process if they share a fixture of the module."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and _shares_with_its_module(item):
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(item.config.rootpath).as_posix()))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long value after its argument: pytest writes ids to the environment of child processes."""
    return argname if isinstance(val, str | bytes) and len(val) > _LONGEST_ID else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Collect the failed tasks that a test of kopf leaves, after the release of its log records.

    asyncio logs such a task when it is collected. In a later test, the collection may happen inside `ast.parse`, which
    then raises SystemError (CPython 3.11).
    """
    result = yield
    if item.get_closest_marker("collect_garbage") is not None:
        gc.collect()
    return result


def _shares_with_its_module(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return any(fixtures[-1].scope in ("module", "class") for fixtures in definitions)


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    """`await eventually(probe, accept, timeout=60.0)`: probe until accepted; on time-out show the last value."""

    async def wait(probe: Callable[[], Any], accept: Callable[[Any], bool] = bool, *, timeout: float = 60.0) -> Any:
        deadline = time.monotonic() + timeout
        last: object = "nothing yet"
        while True:
            try:
                last = probe()
                if inspect.isawaitable(last):
                    last = await last
                if accept(last):
                    return last
            except Exception as error:  # noqa: BLE001 - the time-out shows any error of the probe
                last = error
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout} s; last: {last!r}")
            await asyncio.sleep(0.05)

    return wait


@pytest.fixture
def hold_port() -> Iterator[Callable[[], int]]:
    """`hold_port()`: a port of 127.0.0.1 that is reserved for a server of the test until its end."""
    with contextlib.ExitStack() as held:

        def hold() -> int:
            # The socket is bound and never listens. With SO_REUSEADDR, which servers set, a server may listen on the
            # port. The kernel gives the port neither to connections nor to a bind to port 0.
            reserved = held.enter_context(socket.socket())
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", 0))
            return int(reserved.getsockname()[1])

        yield hold


@pytest.fixture(scope="session")
def few_inotify_instances() -> Callable[[int], Sequence[str]]:
    """`few_inotify_instances(4)`: command prefix that limits a program to four inotify instances.

    A user namespace has a separate limit, so other programs of this machine keep their limit.
    """

    def beginning(count: int) -> Sequence[str]:
        limiting = f'echo {count} > /proc/sys/user/max_inotify_instances && exec "$@"'
        return ("unshare", "--user", "--map-root-user", "sh", "-c", limiting, "sh")

    if subprocess.run([*beginning(1), "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no user namespaces")
    return beginning


@pytest.fixture(scope="session")
def namespaces_go_at_once() -> Callable[..., contextlib.AbstractAsyncContextManager[None]]:
    """`async with namespaces_go_at_once(config)`: finalize deleted namespaces of control planes without delay."""
    from .namespaces import going_at_once

    return going_at_once
