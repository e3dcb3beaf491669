"""Responses of Envoy itself, as the mappers of local replies choose them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from kplane.gateway.envoy.replies import local_replies

TENANT = "/clusters/one/control-plane"


def _matches(filter_: Mapping[str, Any], *, code: int, flag: str, headers: Mapping[str, str]) -> bool:
    """Evaluate a filter of the access log as Envoy does."""
    ((kind, settings),) = filter_.items()
    match kind:
        case "and_filter" | "or_filter":
            found = [_matches(part, code=code, flag=flag, headers=headers) for part in settings["filters"]]
            return all(found) if kind == "and_filter" else any(found)
        case "response_flag_filter":
            return flag in settings["flags"]
        case "status_code_filter":
            return bool(settings["comparison"]["value"]["default_value"] == code)
        case "header_filter":
            return _has_header(settings["header"], headers)
        case _:
            return False


def _has_header(matcher: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
    value = headers.get(matcher["name"])
    if "present_match" in matcher:
        return (value is not None) is matcher["present_match"]
    expected = matcher["string_match"]
    if value is None:
        return False
    if "exact" in expected:
        return bool(value == expected["exact"])
    found = re.fullmatch(expected["safe_regex"]["regex"], value) is not None
    return found is not matcher.get("invert_match", False)


def _reply(method: str, path: str, *, code: int = 503, flag: str = "UC") -> tuple[int, bool, str]:
    """Return the code of a reply, whether it has `Retry-After`, and its reason."""
    headers = {":method": method, ":path": path}
    for mapper in local_replies()["mappers"]:
        if _matches(mapper["filter"], code=code, flag=flag, headers=headers):
            status = json.loads(mapper["body_format_override"]["text_format_source"]["inline_string"])
            keys = [header["header"]["key"] for header in mapper["headers_to_add"]]
            return mapper["status_code"], "retry-after" in keys, status["reason"]
    raise AssertionError(f"no mapper for {method} {path}")


@pytest.mark.parametrize("prefix", [TENANT, ""], ids=["as sent", "without prefix"])
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/a/services/https:web:443/proxy/reset?now",
        "/api/v1/namespaces/a/services/web/proxy",
        "/api/v1/namespaces/a/pods/b/proxy/x",
        "/api/v1/namespaces/a/pods/b/exec?command=sh",
        "/api/v1/namespaces/a/pods/b/attach",
        "/api/v1/namespaces/a/pods/b/portforward?ports=1",
        "/api/v1/nodes/c/proxy/run/x",
    ],
)
def test_lost_get_of_tenant_program_gets_504_without_retry_after(prefix: str, path: str) -> None:
    assert _reply("GET", prefix + path) == (504, False, "Timeout")


@pytest.mark.parametrize("prefix", [TENANT, ""], ids=["as sent", "without prefix"])
@pytest.mark.parametrize(
    "path",
    ["/api/v1/namespaces/a/pods?watch=true", "/api/v1/namespaces/a/pods/proxy", "/api/v1/namespaces/a/pods/b/log"],
)
def test_lost_read_gets_503_with_retry_after(prefix: str, path: str) -> None:
    assert _reply("GET", prefix + path) == (503, True, "ServiceUnavailable")


@pytest.mark.parametrize("flag", ["UC", "UR", "LR", "UPE"])
def test_lost_change_gets_504_without_retry_after(flag: str) -> None:
    assert _reply("POST", f"{TENANT}/api/v1/namespaces/a/pods", flag=flag) == (504, False, "Timeout")


def test_unsent_get_of_tenant_program_gets_503_with_retry_after() -> None:
    path = f"{TENANT}/api/v1/namespaces/a/services/web/proxy"
    assert _reply("GET", path, flag="UF") == (503, True, "ServiceUnavailable")
