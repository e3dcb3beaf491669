"""Runs the command `python -m kplane.binaries`."""

import sys

from kplane.binaries.programs import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
