"""Opening of the page in a browser. The key is not in the arguments of a process, which other users can read."""

from __future__ import annotations

import contextlib
import html
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

__all__ = ["redirecting"]


@contextlib.contextmanager
def redirecting(address: str) -> Iterator[Path]:
    """Write a page that redirects to an address, readable for this user only, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="kplane-ui-") as directory:
        path = Path(directory) / "open.html"
        path.touch(mode=0o600)
        page = resources.files("kplane.cli.ui").joinpath("open.html").read_text()
        path.write_text(page.format(address=html.escape(address)))
        yield path
