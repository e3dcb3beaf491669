"""Images of an installation and their registry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tools import images

pytestmark = pytest.mark.integration

MIRROR = "mirror.example.org:5000/kplane"
HERE = Path(__file__).parent / "values"


def used(rendered: Any) -> set[str]:
    """Return the images of all pods, and the images that the operator gives to pods of tenants."""
    references = set()
    for template in rendered.pod_templates().values():
        for container in (*template["spec"].get("initContainers", ()), *template["spec"]["containers"]):
            references.add(container["image"])
            references |= {
                match[1] for argument in container.get("args", ()) if (match := re.match(r"--\S+-image=(.*)", argument))
            }
    return references


def test_list_of_images_is_up_to_date() -> None:
    """`make generate` writes it."""
    assert images.LIST.read_text() == images.render()


@pytest.mark.parametrize("name", ["default", "ha", "restore", "external-etcd"])
def test_images_are_the_listed_images_of_the_given_registry(chart: Any, name: str) -> None:
    unnamed = {f"{component}.image": {"repository": "", "tag": ""} for component in ("operator", "mcm", "gateway")}
    gateway = {"enabled": True, "url": "https://api.example.org", "certificateSecret": "gateway"}
    settings = {**unnamed, **{f"gateway.{key}": value for key, value in gateway.items()}}
    rendered = chart.render(HERE / f"{name}.yaml", settings={**settings, "global.imageRegistry": MIRROR}, tests=True)
    copied = {f"{MIRROR}/{image.removeprefix('registry.k8s.io/')}" for image in images.images()}
    assert used(rendered) == copied
    assert set(re.findall(r"\S*registry\.k8s\.io\S*", rendered.text)) == set()


@pytest.mark.parametrize(
    ("image", "copied"),
    [
        ("registry.example.org:5000/a/etcd:v1", "a/etcd:v1"),
        ("localhost/etcd:v1", "etcd:v1"),
        ("localhost:5000/etcd:v1", "etcd:v1"),
        ("library/etcd:v1", "library/etcd:v1"),
        ("kplane-etcd:dev", "kplane-etcd:dev"),
        (f"registry.k8s.io/etcd:v1@sha256:{'3' * 64}", f"etcd:v1@sha256:{'3' * 64}"),
    ],
)
def test_registry_replaces_host_and_keeps_name_and_digest(chart: Any, image: str, copied: str) -> None:
    settings = {
        f"{setting}": image for setting in ("etcd.image", "controlPlanes.etcdImage", "controlPlanes.kubeApiserverImage")
    }
    assert image in used(chart.render(settings=settings))
    mirrored = used(chart.render(settings={**settings, "global.imageRegistry": MIRROR}))
    assert mirrored == {f"{MIRROR}/{copied}", f"{MIRROR}/kplane-operator:dev", f"{MIRROR}/kplane-mcm:dev"}


def test_high_availability_values_spread_replicas_with_budgets(chart: Any) -> None:
    rendered = chart.render(chart.directory / "values-ha.yaml")
    for kind, name in (("Deployment", "operator"), ("StatefulSet", "mcm"), ("StatefulSet", "etcd")):
        workload = rendered.one(kind, f"kplane-{name}")
        assert workload["spec"]["replicas"] == (3 if name == "etcd" else 2)
        spread = workload["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert {constraint["topologyKey"] for constraint in spread} == {
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        }
        budget = rendered.one("PodDisruptionBudget", f"kplane-{name}")["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"] == workload["spec"]["selector"]
    (operator,) = rendered.one("Deployment", "kplane-operator")["spec"]["template"]["spec"]["containers"]
    assert "--replicas=2" in operator["args"]
