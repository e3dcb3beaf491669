"""Run `kplane` as a user types it, in an isolated environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from typer.testing import CliRunner

from kplane.binaries.cache import cache_root
from kplane.cli.commands.go_names import translated
from kplane.cli.main import app
from kplane.embedded.handle import Handle

__all__ = ["Kplane", "own_environment"]

_WITH_OTHERS = {"connect", "up", "down"}
"""Commands that start programs."""


def own_environment(home: Path, cluster: Handle | None = None) -> dict[str, str]:
    """Return an environment with a separate home that holds the kubeconfig of the management cluster."""
    paths = [str(Path(sys.executable).parent), "/usr/bin", "/bin"]
    if cluster is not None:
        (home / "config").write_bytes(cluster.admin_kubeconfig.read_bytes())
        paths.insert(1, str(cluster.kubectl_program.parent))
    # Downloaded programs are shared. The credential cache belongs to the test alone.
    binaries = cache_root(os.environ)
    (home / "cache" / "kplane").mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (home / "cache" / "kplane" / binaries.name).symlink_to(binaries)
    return {
        "HOME": str(home),
        "KUBECONFIG": str(home / "config"),
        "PATH": ":".join(paths),
        "XDG_CACHE_HOME": str(home / "cache"),
    }


@dataclass(frozen=True)
class Kplane:
    """Runs commands, and checks their exit codes."""

    environment: dict[str, str]

    def __call__(
        self, *args: str, code: int = 0, timeout: float = 200.0, **changed: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in this process, which is faster, or as a subprocess if other programs write to its output."""
        run = self._as_process if args[0] in _WITH_OTHERS else self._here
        result = run(args, self.environment | changed, timeout)
        assert result.returncode == code, (args, result.stdout, result.stderr)
        return result

    def _here(
        self, args: tuple[str, ...], environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        del timeout  # the timeout of the test applies
        result = CliRunner().invoke(app, translated(args), env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return subprocess.CompletedProcess(list(args), result.exit_code, result.stdout, result.stderr)

    def _as_process(
        self, args: tuple[str, ...], environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kplane", *args],
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=timeout,
            check=False,
        )

    @contextlib.contextmanager
    def running(self, *args: str) -> Iterator[IO[str]]:
        """Run an endless command, yield its output, and end the command with Ctrl-C."""
        with subprocess.Popen(
            ["kplane", *args],
            env=self.environment,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            # A test run in the background of a shell ignores SIGINT, and its children would too.
            preexec_fn=_with_ctrl_c,
        ) as process:
            assert process.stdout is not None
            try:
                yield process.stdout
            finally:
                process.send_signal(signal.SIGINT)
                code = process.wait(30)
        assert code == 130, args


def _with_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
