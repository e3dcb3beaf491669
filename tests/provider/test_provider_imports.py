"""Imports of the provider load no optional or heavy modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "aiohttp",
    "attr",
    "cryptography",
    "email",
    "kopf",
    "kplane.api",
    "multidict",
    "prometheus_client",
    "pydantic",
    "tempfile",
    "unittest",
    "urllib.request",
    "uvloop",
    "yaml",
    "yarl",
)
"""Modules that take long to load, or much memory: aiohttp takes more than all of the provider."""
CLIENT = ["aiohttp", "attr", "email", "multidict", "yarl"]
"""Modules that a client needs."""
LISTED = """
current-context: a
contexts: [{name: a, context: {cluster: a}}]
clusters: [{name: a, cluster: {server: "https://a"}}]
"""


def loaded_by(statement):
    """Run a statement in a new interpreter and return the heavy modules that it loads."""
    program = (
        f"import sys\nLISTED = {LISTED!r}\n{statement}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
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
def test_import_of_the_provider_loads_no_heavy_module(statement):
    assert loaded_by(statement) == []


def test_manager_loads_the_client_and_no_server():
    """The constructor loads the client, so that no request waits for the import in the loop."""
    statement = "from kplane.provider import Manager; Manager(None, name='test')"
    assert set(loaded_by(statement)) - {"tempfile", "urllib.request"} == set(CLIENT)
    assert loaded_by(f"{statement}\nassert 'aiohttp.web' not in sys.modules") != []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "statement", ["import kplane.provider", "from kplane.provider import Manager, controller, run"]
)
def test_import_of_the_provider_takes_at_most_30_mib(statement):
    # The peak of this address space: `ru_maxrss` of a child also counts the memory that pytest has at the fork.
    program = (
        "import re, pathlib\n"
        "def peak(): return int(re.search(r'VmHWM:\\s*(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])\n"
        f"before = peak()\n{statement}\nprint(peak() - before)"
    )
    taken_kib = int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    assert taken_kib <= 30 * 1024


def test_modules_of_optional_parts_are_loaded_with_these_parts():
    assert set(loaded_by("import kplane.provider.serving.http")) >= {"aiohttp", "prometheus_client"}
    assert "kplane.api" in loaded_by("import kplane.provider.providers.kplane")
    assert "yaml" in loaded_by("from kplane.provider import ClusterConfig\nClusterConfig.from_kubeconfig(LISTED)")
