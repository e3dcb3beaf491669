"""Context of a demo in the user's kubeconfig, and the next commands for the user."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from kplane.cli.demo.site import default_directory
from kplane.cli.kubeconfigs import current_context
from kplane.cli.own_kubeconfig import add_context, administrator_context, remove_context, server_of, use_context
from kplane.embedded.handle import Handle

__all__ = ["CONTEXT", "enter", "home_relative", "leave", "next_commands"]

CONTEXT: Final = "kplane.demo"
"""Name of the context. No context of a control plane has this name, because these are named `kplane-NAME`."""
_FORMER: Final = "former-context"


def enter(handle: Handle) -> None:
    """Make the demo's context the current context, and save the name of the former context."""
    former = current_context()
    remembered = "" if former in {None, CONTEXT} else str(former)
    added = administrator_context(handle.admin_kubeconfig, name=CONTEXT)
    (handle.directory / _FORMER).write_text(f"{remembered}\n{added['clusters'][0]['cluster']['server']}")
    add_context(added, replace=True)


def leave(directory: Path) -> None:
    """Undo `enter`; do nothing without an `enter` before.

    The current context stays if the user has changed it since. The context of a demo in another directory stays too.
    """
    try:
        former, _, server = (directory / _FORMER).read_text().partition("\n")
    except FileNotFoundError:
        return
    if server_of(CONTEXT) == server:
        remove_context(CONTEXT, is_own=lambda cluster: cluster.get("server") == server)
    if former:
        use_context(former)
    (directory / _FORMER).unlink()


def next_commands(handle: Handle, *, shown: tuple[str, ...], connect: str, entered: bool) -> tuple[str, ...]:
    """Return commands that the user can run unchanged in a shell, whether `enter` succeeded or not."""
    kubectl = "kubectl" if shutil.which("kubectl") else home_relative(handle.kubectl_program)
    kplane = "kplane" if shutil.which("kplane") else _from_here(Path(sys.executable).parent / "kplane")
    default = handle.directory == default_directory()
    kubeconfig = home_relative(handle.admin_kubeconfig)
    option = f"--context {CONTEXT}" if entered else f"--kubeconfig {kubeconfig}"
    return (
        f"{kubectl} {option} get controlplanes {' '.join(shown)}",
        ("" if entered else f"KUBECONFIG={kubeconfig} ") + f"{kplane} connect {connect} -- kubectl get namespaces",
        f"{kplane} demo-down" + ("" if default else f" --directory {handle.directory}") + "   # ends it",
    )


def home_relative(path: Path) -> str:
    """Return a path for a shell, with `~` if it is below the home directory."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _from_here(path: Path) -> str:
    """Return the path of a program, relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
