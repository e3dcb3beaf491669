"""The chart with names that YAML reads as numbers, booleans or null, and without whole sections of values."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kplane.embedded.handle import Handle
from kplane.embedded.kubectl import Kubectl
from tests.deploy.test_chart_manifests import DRY_RUN

pytestmark = pytest.mark.integration

HOSTILE = ("1", "007", "1e3", "0x1f", "true", "null", "no")
"""Valid names of releases, namespaces and objects. Without quotes, YAML parses none of them as a string."""

NAMES: dict[str, Any] = {
    "crds.enabled": False,
    "nameOverride": "tok-override",
    "imagePullSecrets": [{"name": "tok-registry"}],
    "operator.image.tag": "tok-operator-tag",
    "operator.priorityClassName": "tok-operator-class",
    "operator.secretNamespaces": ["tok-namespace"],
    "mcm.image.tag": "tok-mcm-tag",
    "mcm.priorityClassName": "tok-mcm-class",
    "mcm.source.selector": "pool=tok-pool",
    "gateway.image.tag": "tok-gateway-tag",
    "gateway.enabled": True,
    "gateway.url": "https://tok-host",
    "gateway.domain": "tok-domain",
    "gateway.namespace": "tok-gateway-namespace",
    "gateway.certificateSecret": "tok-certificate",
    "gateway.caSecret": "tok-authority",
    "gateway.priorityClassName": "tok-gateway-class",
    "controlPlanes.storageClass": "tok-storage",
    "etcd.storageClass": "tok-etcd-storage",
    "etcd.dataStores": [{"name": "tok-store", "endpoint": "https://store:2379", "credentialsSecret": "tok-key"}],
    "etcd.backup.storageClass": "tok-backup-storage",
    "etcd.backup.recipients": ["age1" + "q" * 58],
    "etcd.backup.bucket.url": "s3://tok-bucket",
    "etcd.backup.bucket.region": "tok-region",
    "etcd.backup.bucket.credentialsSecret": "tok-bucket-key",
    "metrics.serviceMonitor.enabled": True,
    "metrics.prometheusRule.enabled": True,
    "metrics.dashboard.enabled": True,
    "networkPolicy.metricsFrom": [{"podSelector": {}}],
}
"""Settings that take names, each with a name that YAML parses as a string."""

ENDPOINTS = {"mcm.source.kind": "controlplaneendpoint", "mcm.source.kubeconfigSecretTemplate": "a-{name}"}
VARIANTS: dict[str, dict[str, Any]] = {
    "all": {},
    "three": {"etcd.replicas": 3, "etcd.backup.accessMode": "ReadWriteMany"},
    "restore": {"etcd.restore.snapshot": "a.db"},
    "endpoints": {**ENDPOINTS, "mcm.source.namespaceScope": "tok-scope"},
}

SECTIONS = (
    "crds",
    "operator",
    "mcm",
    "gateway",
    "controlPlanes",
    "etcd",
    "admissionPolicy",
    "networkPolicy",
    "metrics",
    "global",
)


def substitute(tree: Any, tokens: dict[str, str]) -> Any:
    """Replace tokens in all strings of a tree, and remove the digests at the end of the names of Jobs."""
    match tree:
        case dict():
            return {substitute(key, tokens): substitute(value, tokens) for key, value in tree.items()}
        case list():
            return [substitute(item, tokens) for item in tree]
        case str():
            for token, name in sorted(tokens.items(), key=lambda entry: -len(entry[0])):
                tree = tree.replace(token, name)
            return re.sub(r"(-etcd-(?:backup|restore-\d|before-upgrade))-[0-9a-f]{10}$", r"\1", tree)
        case _:
            return tree


def in_order(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort objects by kind and content. The order of helm depends on the names."""
    return sorted(manifests, key=lambda manifest: (manifest["kind"], json.dumps(manifest, sort_keys=True)))


@pytest.mark.parametrize(
    ("variant", "name"), [*(("all", name) for name in HOSTILE), *((variant, "007") for variant in [*VARIANTS][1:])]
)
def test_names_like_numbers_render_as_strings(chart: Any, variant: str, name: str) -> None:
    settings = {**NAMES, **VARIANTS[variant]}
    tokens = dict.fromkeys(re.findall(r"tok-[-a-z]+", json.dumps(settings)), name)
    tokens = {
        **{token: f"{name}a" if token == "tok-gateway-namespace" else name for token in tokens},
        "tok-release": name,
        "space-of-release": name,
        "tok-release-tok-override": f"kplane-{name}" if name[0].isdigit() else name,
    }
    plain = replace(chart, namespace="space-of-release", rendered={})
    hostile = replace(chart, namespace=name, rendered={})
    expected = plain.render(release="tok-release", settings=settings, tests=True).manifests
    rendered = hostile.render(release=name, settings=substitute(settings, tokens), tests=True).manifests
    assert in_order(substitute(rendered, {})) == in_order(substitute(expected, tokens))


@pytest.mark.parametrize("release", [*HOSTILE, "a.b", "1.2", "9" * 53])
def test_services_have_dns_labels_for_names(chart: Any, release: str) -> None:
    names = chart.render(release=release, settings={"gateway.enabled": True, "gateway.url": "https://a"}).names(
        "Service"
    )
    assert [name for name in names if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)] == []


@pytest.mark.parametrize("section", SECTIONS)
def test_missing_section_of_values_is_a_schema_error(chart: Any, section: str) -> None:
    with pytest.raises(chart.refused, match=rf"missing property '{section}'|{section}.*got null"):
        chart.helm("template", "kplane", str(chart.directory), "--namespace=kplane-system", f"--set={section}=null")


@pytest.mark.parametrize("field", ["key", "value", "operator", "effect"])
def test_toleration_with_number_is_a_schema_error(chart: Any, field: str) -> None:
    options = ["kplane", str(chart.directory), "--namespace=kplane-system", f"--values={chart.images}"]
    setting = f"operator.tolerations[0].{field}=1"
    with pytest.raises(chart.refused, match=rf"tolerations/0/{field}.*want string"):
        chart.helm("template", *options, f"--set={setting}")
    assert f'{field}: "1"' in chart.helm("template", *options, f"--set-string={setting}")


def test_large_numbers_render_without_exponents(chart: Any) -> None:
    settings = {"controlPlanes.awakeLimit": 2_000_000, "operator.workers": 1_000_000, "etcd.backup.keep": 1_000_000}
    text = chart.render(settings=settings).text
    assert "--awake-limit=2000000" in text
    assert "--workers=1000000" in text
    assert "--keep=1000000" in text


def test_configuration_of_joining_member_has_unquoted_numbers(chart: Any, tmp_path: Path) -> None:
    copy = shutil.copytree(chart.directory, tmp_path / "kplane")
    # Without an API server, helm cannot find an etcd that has grown.
    helpers = copy / "templates" / "_helpers.tpl"
    grown, count = re.subn(r'(define "kplane.etcdGrown" -}}\n).*\n', r"\1true\n", helpers.read_text())
    assert count == 1
    helpers.write_text(grown)
    images = f"--values={chart.images}"
    text = chart.helm("template", "kplane", str(copy), images, "--show-only=templates/etcd/join.yaml")
    # etcd exits if a number is quoted.
    settings = yaml.safe_load(yaml.safe_load(text)["data"]["etcd.yaml"])
    assert settings["quota-backend-bytes"] == chart.values["etcd"]["quotaBytes"]


@pytest.fixture
async def namespaces(api_server: Handle) -> AsyncIterator[Kubectl]:
    """The API server, with namespaces 007 and null."""
    kube = api_server.kubectl
    names = ("007", "null")
    for name in names:
        await kube.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
    yield kube
    await kube.run("delete", "--wait=false", *(f"namespace/{name}" for name in names))


async def test_api_server_accepts_names_like_numbers(chart: Any, namespaces: Kubectl) -> None:
    for release, namespace, gateway in (("1", "007", "null"), ("true", "null", "007")):
        settings = {"gateway.enabled": True, "gateway.url": "https://api.example.org", "gateway.namespace": gateway}
        rendered = replace(chart, namespace=namespace, rendered={}).render(release=release, settings=settings)
        printed = await namespaces.run(*DRY_RUN, "-f", "-", stdin=rendered.text)
        assert len(printed.splitlines()) == len(rendered.manifests), release
