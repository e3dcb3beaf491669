"""Configurations that the Milo provider refuses."""

from __future__ import annotations

import pytest

from kplane.provider import Client, ClusterConfig
from kplane.provider.errors import KubeconfigError
from kplane.provider.providers.milo import MiloProvider


def test_milo_requires_a_ca_for_internal_service_discovery():
    client = Client(ClusterConfig("https://milo.test", token="t"))
    with pytest.raises(KubeconfigError, match="no CA of its own"):
        MiloProvider(client, internal_service_discovery=True)
    # The credentials may be used at the host that they are for.
    assert MiloProvider(client).name == "milo"
