"""deletionPolicy Retain keeps the data after the control plane. Only the holder of a token gets them back."""

from __future__ import annotations

import pytest

from e2e.platform import Platform
from e2e.tenant import widgets
from e2e.waiting import eventually

_ADOPT = "controlplane.kplane.dev/adopt"
_RETAINED = "controlplane.kplane.dev/retained"
_ADOPTION = "controlplane.kplane.dev/adoption-token"


@pytest.mark.parametrize("mode", ["Virtual", "Dedicated"])
def test_data_are_kept_and_handed_to_who_asks_for_them(platform: Platform, mode: str) -> None:
    """A deleted control plane comes back with its data by one annotation.

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
    said = platform.becomes("ControlPlane", name, "DataRetained")
    assert _ADOPT in said
    assert token not in said
    # A reader of ControlPlanes or Events knows the uid.
    platform.kubectl("annotate", "controlplane", name, f"{_ADOPT}={uid}")
    eventually("another sentence", lambda: "does not match" in platform.becomes("ControlPlane", name, "DataRetained"))

    platform.kubectl("annotate", "--overwrite", "controlplane", name, f"{_ADOPT}={token}")
    platform.becomes_ready("ControlPlane", name)
    again = platform.tenant(name)
    assert again.kept("promise") == mode
    assert "widgets.example.com" in again.kubectl.names("customresourcedefinitions")
    assert again.kubectl.get("namespace", "kube-system")["metadata"]["uid"] == identity
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
