"""Manifests of bundles: valid forms, invalid content and hostile content."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kplane.controlplane_operator.addons.manifest import ObjectId, identify, rank, read_bundle, read_manifests
from kplane.controlplane_operator.errors import BundleInvalid

CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {name: one, namespace: shop}
data: {from: 2024-01-02, mode: "0644"}
"""


def test_documents_lists_and_json_are_read_in_order() -> None:
    listed = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "b"}}],
    }
    text = f"---\n{CONFIG}---\n# nothing but a comment\n---\n{json.dumps(listed)}\n"
    objects = read_manifests(text, source="x")
    assert [str(identify(obj)) for obj in objects] == ["ConfigMap shop/one", "Namespace b"]


def test_date_like_value_stays_a_string_as_in_kubernetes() -> None:
    (manifest,) = read_manifests(CONFIG, source="x")
    assert manifest["data"] == {"from": "2024-01-02", "mode": "0644"}


def test_server_set_fields_of_exported_object_are_removed() -> None:
    metadata = "{name: a, uid: u, resourceVersion: '3', managedFields: [], labels: {x: y}}"
    text = f"{{apiVersion: v1, kind: Namespace, metadata: {metadata}}}"
    (manifest,) = read_manifests(text, source="x")
    assert manifest["metadata"] == {"name": "a", "labels": {"x": "y"}}


def test_yaml_aliases_are_resolved() -> None:
    text = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: &l {x: y}, annotations: *l}}"
    (manifest,) = read_manifests(text, source="x")
    assert manifest["metadata"]["annotations"] == {"x": "y"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "no YAML"),
        ("- just\n- a list", "no kind"),
        ("kind: ConfigMap\napiVersion: v1\nmetadata: {generateName: x-}", "no metadata.name"),
        ("kind: ConfigMap\nmetadata: {name: x}", "no apiVersion"),
        ("{kind: ConfigMap, apiVersion: ../v1, metadata: {name: x}}", "cannot be one"),
        ("{kind: ConfigMap, apiVersion: v1, metadata: {name: a/b}}", "cannot be one"),
        ("{kind: ConfigMap, apiVersion: v1, metadata: {name: x, namespace: ..}}", "cannot be one"),
        ("{kind: ConfigMap, apiVersion: v1, metadata: {name: x, labels: [a]}}", "labels is no mapping"),
        ("{kind: ConfigMap, apiVersion: v1, metadata: {name: x}, data: !!binary aGk=}", "no word"),
        ("{kind: ConfigMap, apiVersion: v1, metadata: {name: x}, data: !!python/object:os.system {}}", "no YAML"),
        ("{kind: X, apiVersion: v1, metadata: {name: x}, spec: " + "[" * 150 + "]" * 150 + "}", "deep"),
    ],
)
def test_unusable_manifest_is_rejected_with_its_entry(text: str, told: str) -> None:
    with pytest.raises(BundleInvalid, match=told) as caught:
        read_bundle({"part.yaml": text})
    assert "part.yaml" in str(caught.value)


def test_expanding_aliases_are_rejected_above_200000_values() -> None:
    layers = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    layers += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10)]
    text = "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\n" + "\n".join(layers)
    with pytest.raises(BundleInvalid, match="more than 200000 values"):
        read_bundle({"a": text})


def test_bundles_with_no_or_over_500_objects_are_rejected() -> None:
    for data in ({}, {"a": ""}, {"a": "---\n---\n"}):
        with pytest.raises(BundleInvalid, match="no manifest"):
            read_bundle(data)
    many = "---\n".join(f"{{kind: ConfigMap, apiVersion: v1, metadata: {{name: x{n}}}}}\n" for n in range(501))
    with pytest.raises(BundleInvalid, match="500 are the most"):
        read_bundle({"a": many})


def test_digest_is_independent_of_manifest_format() -> None:
    first = read_bundle({"a": CONFIG})
    assert read_bundle({"b": json.dumps(first.objects[0])}).digest == first.digest
    assert read_bundle({"a": CONFIG.replace("0644", "0600")}).digest != first.digest


def _of(group: str, kind: str) -> Any:
    return ObjectId(f"{group}/v1" if group else "v1", kind, "", "x")


def test_rank_orders_kinds_by_their_dependencies() -> None:
    kinds = [
        _of("", "Namespace"),
        _of("apiextensions.k8s.io", "CustomResourceDefinition"),
        _of("rbac.authorization.k8s.io", "ClusterRole"),
        _of("rbac.authorization.k8s.io", "ClusterRoleBinding"),
        _of("apps", "Deployment"),
        _of("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
    ]
    assert [rank(kind) for kind in kinds] == sorted({rank(kind) for kind in kinds})
    assert rank(_of("example.com", "Namespace")) == rank(_of("example.com", "Widget"))
