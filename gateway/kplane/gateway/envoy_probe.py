"""Liveness probe of an Envoy in a container of its own: `python -m kplane.gateway.envoy_probe SOCKET`.

The kernel accepts connections for a process that is stopped, so the probe waits for a response. It asks the
administration interface, since Envoy has a port for clients only after its first configuration. The program imports
the standard library alone, since kubelet starts it every ten seconds.
"""

from __future__ import annotations

import socket
import sys
from typing import Final

__all__ = ["main"]

_TIMEOUT_SECONDS: Final = 8.0
"""Timeout of each step of the probe. The probe of the chart allows 10 s in all."""
_REQUEST: Final = b"GET /ready HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\n\r\n"
_STATUS_LINE: Final = b"HTTP/1."


def main(arguments: list[str]) -> int:
    """Probe the administration interface at a Unix socket.

    Returns 0 if Envoy responds, also if it is not ready yet, and 1 after an error or without a response.
    """
    try:
        (path,) = arguments
    except ValueError:
        sys.stderr.write("usage: python -m kplane.gateway.envoy_probe SOCKET\n")
        return 1
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            connection.connect(path)
            connection.sendall(_REQUEST)
            received = connection.recv(1 << 10)
    except OSError as error:
        sys.stderr.write(f"failed to probe Envoy at {path}: {error}\n")
        return 1
    if not received.startswith(_STATUS_LINE):
        sys.stderr.write(f"failed to probe Envoy at {path}: it sent no HTTP response\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
