"""Measures the import of `kplane.provider` in trees of this repository: `python -m benchmarks.imports TREE...`.

Each statement runs in new interpreters with the `provider` of a tree. The trees take turns, so that the load of the
machine is the same for all. The first round compiles the modules, and does not count. Prints JSON with the medians:

- `wall_seconds` and `cpu_seconds` of the statement, without the start of the interpreter;
- `max_rss_mib`: peak memory of the process, beside that of an interpreter without a statement.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_STATEMENTS: Final = {
    "nothing": "pass",
    "import": "import kplane.provider",
    "manager": "from kplane.provider import Manager; Manager(None, name='x')",
}
_PROGRAM: Final = """
import json, resource, time
wall, cpu = time.perf_counter(), time.process_time()
{statement}
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(json.dumps([wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def _sample(tree: Path, *, statement: str) -> list[float]:
    """Return seconds, processor seconds and peak MiB of a statement in a new interpreter."""
    environment = {**os.environ, "PYTHONPATH": str(tree.absolute() / "provider")}
    command = [sys.executable, "-c", _PROGRAM.format(statement=statement)]
    # Not in this directory, which may have packages of its own.
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True)
    sample: list[float] = json.loads(done.stdout)
    return sample


def measure(trees: Sequence[Path], *, rounds: int) -> dict[str, dict[str, Any]]:
    """Return the medians of each statement in each tree."""
    samples: dict[tuple[Path, str], list[list[float]]] = {}
    for count in range(rounds + 1):
        for tree in trees:
            for name, statement in _STATEMENTS.items():
                sample = _sample(tree, statement=statement)
                if count:
                    samples.setdefault((tree, name), []).append(sample)
    return {str(tree): {name: _medians(samples[tree, name]) for name in _STATEMENTS} for tree in dict.fromkeys(trees)}


def _medians(samples: Sequence[Sequence[float]]) -> dict[str, float]:
    wall, cpu, memory = map(statistics.median, zip(*samples, strict=True))
    return {"wall_seconds": round(wall, 4), "cpu_seconds": round(cpu, 4), "max_rss_mib": round(memory, 1)}


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", type=Path, nargs="+", metavar="TREE", help="checkouts of this repository")
    parser.add_argument("--rounds", type=int, default=10, help="interpreters for each statement and tree")
    given = parser.parse_args()
    load = os.getloadavg()
    trees = measure(given.trees, rounds=given.rounds)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": [load, os.getloadavg()]}
    print(json.dumps({"machine": machine, "trees": trees}, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
