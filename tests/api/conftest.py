"""Manifests that the models and the API server must accept or refuse alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

_DATA = Path(__file__).parent / "data"
_COMPAT = Path(__file__).parents[3] / "shared" / "compat"
"""Manifests of existing users, if the workplace has them."""
_COMPAT_FIELDS = {
    "bad-mode": "spec.mode",
    "bad-policy": "spec.deletionPolicy",
    "bad-path": "spec.virtual.clusterPath",
    "bad-endpoint-ref": "spec.endpointRef.name",
    "bad-service": "spec.services[0]",
    "bad-no-ref": "spec.controlPlaneRef",
    "bad-url": "spec.endpoint",
}


@dataclass(frozen=True)
class Refusal:
    manifest: dict[str, Any]
    field: str
    """Field that the message must name."""
    says: str
    """Text that the message must contain."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the argument `accepted` or `refusal` once for each manifest."""
    if "accepted" in metafunc.fixturenames:
        manifests = [
            manifest
            for file in [_DATA / "accepted.yaml", *_COMPAT.glob("0[12]-*.yaml")]
            for manifest in yaml.safe_load_all(file.read_text())
        ]
        metafunc.parametrize("accepted", manifests, ids=[_identify(manifest) for manifest in manifests])
    if "refusal" in metafunc.fixturenames:
        refusals = [*_refusals(), *_compat_refusals()]
        metafunc.parametrize("refusal", refusals, ids=[_identify(refusal.manifest) for refusal in refusals])


def _identify(manifest: dict[str, Any]) -> str:
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


def _refusals() -> list[Refusal]:
    refusals = []
    for manifest in yaml.safe_load_all((_DATA / "rejected.yaml").read_text()):
        annotations = manifest["metadata"].pop("annotations")
        refusals.append(Refusal(manifest, field=annotations["field"], says=annotations.get("says", "")))
    return refusals


def _compat_refusals() -> list[Refusal]:
    return [
        Refusal(manifest, field=_COMPAT_FIELDS[manifest["metadata"]["name"]], says="")
        for file in _COMPAT.glob("03-*.yaml")
        for manifest in yaml.safe_load_all(file.read_text())
    ]
