"""Address of the test machine for connections of API servers."""

from __future__ import annotations

import socket

import pytest


def own_address() -> str:
    """Return a non-loopback address of this machine. No class can allow loopback addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.fail("this machine has no address other than loopback")
        return str(probe.getsockname()[0])
