"""Requirements on every provider."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import pkgutil
import subprocess
import sys

from kplane.provider import Cluster, ClusterConfig, Manager, providers
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.providers.file import FileProvider
from kplane.provider.providers.kind import KindProvider
from kplane.provider.providers.multi import MultiProvider
from kplane.provider.providers.nop import NopProvider
from kplane.provider.providers.single import SingleProvider


def found():
    """Return module and name of each provider."""
    for info in pkgutil.walk_packages(providers.__path__, f"{providers.__name__}."):
        module = importlib.import_module(info.name)
        for name, member in vars(module).items():
            ours = inspect.isclass(member) and member.__module__ == module.__name__
            # An access provider of the Cluster Inventory API finds credentials, and no clusters; `_support` has parts.
            if ours and name.endswith("Provider") and name != "AccessProvider" and "._support." not in info.name:
                yield module.__name__, name


def test_each_provider_conforms_to_the_protocol_in_mypy(tmp_path):
    known = sorted(found())
    assert {name for _, name in known} == {
        "ClusterApiProvider",
        "ClusterInventoryProvider",
        "ClustersProvider",
        "EndpointProvider",
        "FileProvider",
        "KindProvider",
        "KubeconfigProvider",
        "MiloProvider",
        "MultiProvider",
        "NamespaceProvider",
        "NopProvider",
        "RegistrationProvider",
        "SingleProvider",
    }
    lines = [
        "from kplane.provider.contracts import Provider",
        *(f"from {module} import {name}" for module, name in known),
    ]
    for number, (_, name) in enumerate(known):
        lines += [
            f"def as_provider_{number}(given: {name}) -> Provider:",
            "    provider: Provider = given",
            "    return provider",
        ]
    source = tmp_path / "every_provider.py"
    source.write_text("\n".join(lines))
    # mypy runs in its own process, because its objects in memory would slow down each later garbage collection.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(source)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


async def test_providers_leave_no_task_or_descriptor_when_manager_ends(tmp_path, eventually):
    (tmp_path / "kind").write_text("#!/bin/sh\ncase $2 in clusters) echo a ;; *) sleep 60 ;; esac\n")
    (tmp_path / "kind").chmod(0o755)
    config, multi, by_hand = ClusterConfig("https://127.0.0.1:1"), MultiProvider(), ClustersProvider()
    (tmp_path / "kubeconfig.yaml").write_text(str(config.to_kubeconfig()))
    await by_hand.add(Cluster("a", config=config))
    multi.add_provider("kind", KindProvider(program=str(tmp_path / "kind")))
    multi.add_provider("file", FileProvider(directories=[tmp_path]))
    multi.add_provider("hand", by_hand)
    multi.add_provider("fixed", SingleProvider(Cluster("a", config=config)))
    multi.add_provider("none", NopProvider())
    before = len(os.listdir("/proc/self/fd"))
    async with Manager(None, multi, name="test") as manager:
        await eventually(manager.cluster_names, lambda names: len(names) == 3)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await eventually(lambda: len(os.listdir("/proc/self/fd")), lambda now: now <= before)
