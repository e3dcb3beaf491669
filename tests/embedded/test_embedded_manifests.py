"""Installation waits for each CRD until the API server serves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kplane.embedded.errors import NotReadyInTime
from kplane.embedded.manifests import crd_manifests, install
from kplane.provider import Client, Resource

_SEEN_BY_NOBODY: dict[str, Any] = {}
_WITHOUT_CONDITIONS = {"status": {"conditions": None, "acceptedNames": {"kind": ""}}}
_REFUSED = {"status": {"conditions": [{"type": "Established", "status": "False"}]}}
_SERVED = {
    "status": {"conditions": [{"type": "NamesAccepted", "status": "True"}, {"type": "Established", "status": "True"}]}
}


class _Slow(Client):
    """A fake API server with slow CRDs. On a real API server, the states before service last for milliseconds."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self._states = states
        self.reads: dict[str, int] = {}

    async def apply(self, resource: Resource, manifest: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        return dict(manifest)

    async def get(self, resource: Resource, name: str, **_: Any) -> dict[str, Any]:
        count = self.reads[name] = self.reads.get(name, 0) + 1
        return self._states[min(count, len(self._states)) - 1]


async def test_install_waits_until_each_crd_is_established(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kplane.embedded.manifests._POLL_SECONDS", 0.0)
    client = _Slow(_SEEN_BY_NOBODY, _WITHOUT_CONDITIONS, _REFUSED, _SERVED)
    await install(client, timeout_seconds=10.0)
    assert client.reads == {crd["metadata"]["name"]: 4 for crd in crd_manifests()}


async def test_install_raises_if_crds_are_not_served_in_time() -> None:
    with pytest.raises(NotReadyInTime, match=r"CRDs .* were not served after"):
        await install(_Slow(_REFUSED), timeout_seconds=0.1)
