"""Images of programs, and images of other versions of a program."""

from __future__ import annotations

import pytest

from kplane.workloads import RuntimeFailure
from kplane.workloads.pods import Image

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("reference", "version", "other"),
    [
        ("registry.k8s.io/kube-apiserver:v1.36.3", "1.36.3", "registry.k8s.io/kube-apiserver:v1.37.0"),
        ("registry.example:5000/a/b:1.36.3", "1.36.3", "registry.example:5000/a/b:v1.37.0"),
        ("registry.example:5000/a/b", None, "registry.example:5000/a/b:v1.37.0"),
        ("kube-apiserver:stable", None, "kube-apiserver:v1.37.0"),
        ("etcd:3.6.16-0", None, "etcd:v1.37.0"),
    ],
)
def test_image_of_another_version_has_another_tag(reference: str, version: str | None, other: str) -> None:
    image = Image(reference, capabilities=("NET_BIND_SERVICE",))
    assert image.version == version
    assert image.at("1.37.0") == Image(other, capabilities=("NET_BIND_SERVICE",))


def test_image_at_its_own_version_is_equal() -> None:
    assert Image("a:1.36.3").at("1.36.3") == Image("a:1.36.3")


@pytest.mark.parametrize(
    ("reference", "version"),
    [
        (f"registry.example/a@{DIGEST}", None),
        (f"registry.example:5000/a@{DIGEST}", None),
        (f"registry.example/a:v1.36.3@{DIGEST}", "1.36.3"),
    ],
)
def test_image_with_digest_refuses_another_version(reference: str, version: str | None) -> None:
    """The version of an image with a digest is its tag, if its reference has a tag."""
    image = Image(reference)
    assert image.version == version
    if version is not None:
        assert image.at(version) == image
    with pytest.raises(RuntimeFailure, match="named by its digest"):
        image.at("1.36.4")
