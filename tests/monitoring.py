"""Kinds of the Prometheus Operator that tests need."""

from __future__ import annotations

from typing import Any

_KINDS = {"ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}


def crds() -> list[dict[str, Any]]:
    """Return CRDs that accept objects of any content."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.monitoring.coreos.com"},
            "spec": {
                "group": "monitoring.coreos.com",
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
            },
        }
        for kind, plural in _KINDS.items()
    ]
