"""Templates for the Secrets of endpoints."""

from __future__ import annotations

import pytest

from kplane.provider.errors import ProviderError
from kplane.provider.providers.kplane import SecretTemplate


def test_template_yields_namespace_and_secret_name():
    assert SecretTemplate("kplane-cp-{name}/cp-{name}").secret_of("a") == ("kplane-cp-a", "cp-a")
    assert SecretTemplate("fleet/all.{name}").secret_of("a.b") == ("fleet", "all.a.b")
    assert SecretTemplate("fleet/shared").secret_of("a") == ("fleet", "shared")
    for template in ("{name}-kubeconfig", "{namespace}/{name}-kubeconfig", "fleet/{name}-kubeconfig"):
        assert SecretTemplate(template, namespace_scope="fleet").secret_of("a") == ("fleet", "a-kubeconfig")


def test_template_that_yields_invalid_name_is_reported():
    template = SecretTemplate("kplane-cp-{name}/cp-{name}")
    assert template.secret_of("a.b") is None
    assert template.secret_of("a" * 60) is None


@pytest.mark.parametrize(
    ("template", "scope", "why"),
    [
        ("{name}-{cluster}", "fleet", "unknown placeholders: cluster"),
        ("{}/{name}", "fleet", "unknown placeholders"),
        ("fleet/{name!r}", None, "unknown placeholders: name!r"),
        ("fleet/{name:>9}", None, "unknown placeholders: name:>9"),
        ("fleet/{name.x}", None, r"unknown placeholders: name\.x"),
        ("fleet/{name", None, "a brace without its other one"),
        ("{namespace}/{name}", None, "endpoints are in none"),
        ("{name}-kubeconfig", None, "names no namespace"),
        ("", "fleet", "makes no names"),
        ("/{name}", None, "makes no names"),
        ("fleet/a/{name}", None, "makes no names"),
        ("Fleet/{name}", None, "makes no names"),
        ("other/{name}", "fleet", "leads out of the namespace scope 'fleet'"),
        ("{name}/{name}", "x", "leads out of the namespace scope 'x'"),
        ("{name}", "../x", "cannot be the name of a namespace"),
    ],
)
def test_invalid_template_is_refused_with_reason(template, scope, why):
    with pytest.raises(ProviderError, match=why):
        SecretTemplate(template, namespace_scope=scope)
