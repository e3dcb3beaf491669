"""Execution of a command's work against the management cluster, with the right exit code at its end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from kplane.cli.errors import CliError, ExitCode
from kplane.cli.printable import printable_lines

if TYPE_CHECKING:  # loaded when a command runs, so that --help stays fast
    from kplane.client import ControlPlanes

__all__ = ["continuing", "run", "say", "work_on"]

Work = Callable[["ControlPlanes"], Awaitable[None]]


def work_on(context: str | None, work: Work) -> None:
    """Connect to the management cluster, and do the work. Raises typer.Exit after an error.

    Without a context, the management cluster is that of the current context, even if it is the context of a control
    plane.
    """

    import asyncio

    async def connected() -> None:
        from kplane.cli.kubeconfigs import management
        from kplane.client import ControlPlanes
        from kplane.provider import ClusterConfig, Unreachable
        from kplane.provider.access.proxies import ignored_proxy

        cluster = management(context)
        config = ClusterConfig.default(context=cluster.context, environment=cluster.environment)
        try:
            async with ControlPlanes.connect(config) as control_planes:
                await work(control_planes)
        except Unreachable as error:
            # kubectl would use the proxy of the environment, and reach the cluster.
            if config.proxy is None and (sentence := ignored_proxy()) is not None:
                error.add_note(sentence)
            raise

    run(lambda: asyncio.run(connected()))


def run(command: Callable[[], Any]) -> None:
    """Run a command. An error becomes a line on standard error, and an exit code."""
    from kplane.client import ClientError, NoControlPlane, NotSettled
    from kplane.provider import NotFound, ProviderError, Unreachable
    from kplane.provider.errors import KubeconfigError

    try:
        command()
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of the output, such as `head`, has closed the pipe.
        sys.stderr.close()
        raise typer.Exit(ExitCode.OK) from None
    except (ClientError, CliError, OSError, ProviderError) as error:
        say(f"error: {_words(error)}", error=True)
        match error:
            case NoControlPlane() | NotFound():
                code = ExitCode.NOT_FOUND
            case NotSettled():
                code = ExitCode.TIMED_OUT
            case Unreachable() | KubeconfigError():
                code = ExitCode.UNREACHABLE
            case _:
                code = ExitCode.FAILED
        raise typer.Exit(code) from None


@contextlib.contextmanager
def continuing(text: str) -> Iterator[None]:
    """Print that a change continues if the wait for it is interrupted, or takes too long."""
    import asyncio

    from kplane.client import NotSettled

    try:
        yield
    except (asyncio.CancelledError, KeyboardInterrupt, NotSettled):
        say(text)
        raise


def _words(error: Exception) -> str:
    """Return the message of an error with its notes. The number of an operating system error is left out."""
    if isinstance(error, OSError) and error.strerror is not None and error.filename is not None:
        return f"failed to use {error.filename}: {error.strerror}"
    return "; ".join((str(error), *getattr(error, "__notes__", ())))


def say(text: str, *, error: bool = False) -> None:
    """Print a message for people on standard error; standard output is for results."""
    typer.secho(printable_lines(text), err=True, fg="red" if error else None)
