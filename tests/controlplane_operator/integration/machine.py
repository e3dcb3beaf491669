"""The machine that the tests run on, as API servers may reach it."""

from __future__ import annotations

import socket

import pytest


def own_address() -> str:
    """Return an address of this machine that is not loopback, which no class allows."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        try:
            found.connect(("198.51.100.1", 9))
        except OSError:
            pytest.fail("this machine has no address other than loopback")
        return str(found.getsockname()[0])
