"""deletionPolicy Retain keeps the data of a deleted control plane for the holder of the adoption token."""

from __future__ import annotations

import pytest

from e2e.platform import Platform
from e2e.tenant import widgets
from e2e.waiting import eventually

_ADOPT = "controlplane.kplane.dev/adopt"
_RETAINED = "controlplane.kplane.dev/retained"
_ADOPTION = "controlplane.kplane.dev/adoption-token"


@pytest.mark.parametrize("mode", ["Virtual", "Dedicated"])
def test_retained_data_return_only_with_adoption_token(platform: Platform, mode: str) -> None:
    """An annotation with the token gives the data to a new control plane of the same name.

    The name alone gives a message and no data. After Destroy, the data are gone.
    """
    name, namespace = platform.name("kept"), f"kplane-cp-{platform.name('kept')}"
    platform.create("ControlPlane", name, mode=mode, deletionPolicy="Retain")
    platform.becomes_ready("ControlPlane", name)
    uid = platform.get("ControlPlane", name)["metadata"]["uid"]
    tenant = platform.tenant(name)
    tenant.keep("promise", mode)
    tenant.kubectl.apply(widgets("example.com"))
    identity = tenant.kubectl.get("namespace", "kube-system")["metadata"]["uid"]

    platform.delete("ControlPlane", name)
    metadata = platform.kubectl.get("namespace", namespace)["metadata"]
    assert "ownerReferences" not in metadata
    assert metadata["labels"][_RETAINED] == "true"
    token = metadata["annotations"][_ADOPTION]

    platform.create("ControlPlane", name, mode=mode, deletionPolicy="Retain")
    message = platform.becomes("ControlPlane", name, "DataRetained")
    assert _ADOPT in message
    assert token not in message
    # The uid is not secret, because each reader of ControlPlanes or Events sees it.
    platform.kubectl("annotate", "controlplane", name, f"{_ADOPT}={uid}")
    eventually("another sentence", lambda: "does not match" in platform.becomes("ControlPlane", name, "DataRetained"))

    platform.kubectl("annotate", "--overwrite", "controlplane", name, f"{_ADOPT}={token}")
    platform.becomes_ready("ControlPlane", name)
    successor = platform.tenant(name)
    assert successor.kept("promise") == mode
    assert "widgets.example.com" in successor.kubectl.names("customresourcedefinitions")
    assert successor.kubectl.get("namespace", "kube-system")["metadata"]["uid"] == identity
    # The former credentials stay revoked.
    tenant.kubectl.refuses("get", "namespaces")
    labels = platform.kubectl.get("namespace", namespace)["metadata"].get("labels", {})
    assert _RETAINED not in labels

    platform.patch("ControlPlane", name, {"spec": {"deletionPolicy": "Destroy"}})
    platform.becomes_ready("ControlPlane", name)
    platform.delete("ControlPlane", name)
    assert platform.kubectl.find("namespace", namespace) is None
    platform.create("ControlPlane", name, mode=mode, deletionPolicy="Destroy")
    platform.becomes_ready("ControlPlane", name)
    assert platform.tenant(name).kept("promise") is None
