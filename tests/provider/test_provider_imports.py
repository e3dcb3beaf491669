"""What importing the provider loads: nothing that an author of a reconciler may not have, or not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("cryptography", "kopf", "kplane.api", "prometheus_client", "pydantic", "uvloop")


def loaded_by(statement):
    """Run a statement in an interpreter of its own; returns which of the heavy modules it loads."""
    program = f"import sys\n{statement}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    "statement",
    [
        "import kplane.provider",
        "from kplane.provider.providers.file import FileProvider",
        "from kplane.provider.providers.secrets import KubeconfigProvider",
        "from kplane.provider import ClusterConfig; ClusterConfig('https://127.0.0.1:6443', token='x')",
    ],
)
def test_it_loads_no_more_than_it_needs(statement):
    assert loaded_by(statement) == []


def test_what_is_used_is_loaded():
    assert loaded_by("import kplane.provider.serving.http") == ["prometheus_client"]
    assert "kplane.api" in loaded_by("import kplane.provider.providers.kplane")
