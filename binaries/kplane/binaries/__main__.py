"""`python -m kplane.binaries [PROGRAM...]` prints the directories of the programs."""

import sys

from kplane.binaries.programs import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
