"""Opens the page in a browser without its key in the arguments of a process, which all users of a machine may read."""

from __future__ import annotations

import contextlib
import html
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["redirecting"]

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>kplane</title>
</head>
<body><a href="{address}">kplane</a></body>
</html>
"""


@contextlib.contextmanager
def redirecting(address: str) -> Iterator[Path]:
    """Write a page that leads to an address, for this user only, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="kplane-ui-") as directory:
        path = Path(directory) / "open.html"
        path.touch(mode=0o600)
        path.write_text(_PAGE.format(address=html.escape(address)))
        yield path
