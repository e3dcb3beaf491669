"""Exec plugin of kubeconfigs: prints a cached credential at once, or runs `kplane credential`."""

from __future__ import annotations

import sys

from kplane.cli.credential_cache import hand_out

__all__ = ["main"]


def main() -> None:
    """Print the ExecCredential for the client that started this process."""
    arguments = sys.argv[1:]
    if "--uid" in arguments[:-1]:
        cached = hand_out(arguments[arguments.index("--uid") + 1])
        if cached is not None:
            sys.stdout.write(f"{cached}\n")
            return
    # Imported here, because this import takes most of a second.
    from kplane.cli.main import app

    app(["credential", *arguments])


if __name__ == "__main__":
    main()
