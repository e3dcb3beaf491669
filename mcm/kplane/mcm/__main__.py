"""Program `mcm`: handles SIGTERM before it imports the rest.

The kernel delivers to process 1 of a container only signals that have a handler. Until the main function handles
SIGTERM itself, no work is begun that needs an orderly end.
"""

from __future__ import annotations

import os
import signal

__all__ = ["main"]


def main() -> None:
    """Run the program. SIGTERM before its main function runs exits with status 143."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    from kplane.mcm.main import main as run

    run()


if __name__ == "__main__":
    main()
