"""Bearer tokens for the API of a control plane."""

from __future__ import annotations

import base64
import json
import re
from typing import Final

from kplane.client.errors import ClientError
from kplane.provider import Client

__all__ = ["issue_token"]

_SUBJECT: Final = re.compile("system:serviceaccount:(?P<namespace>[^:]+):(?P<name>[^:]+)")


async def issue_token(tenant: Client, *, seconds: int) -> str:
    """Return a new token for the ServiceAccount as which `tenant` authenticates, issued by the API server of `tenant`.

    `seconds` is the requested lifetime; the API server may grant a shorter lifetime. Raises ClientError if `tenant`
    does not use a ServiceAccount token.
    """
    namespace, name = _service_account(tenant.config.token)
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds},
    }
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    answer = await tenant.request("POST", path, body=body)
    return str(answer["status"]["token"])


def _service_account(token: str | None) -> tuple[str, str]:
    """Return namespace and name of a token's ServiceAccount. Raises ClientError if there is none."""
    try:
        payload = (token or "").split(".")[1]
        subject = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"]
    except (IndexError, KeyError, TypeError, ValueError):
        subject = ""
    if (match := _SUBJECT.fullmatch(str(subject))) is None:
        raise ClientError(
            "the administrator of this control plane has a client certificate and no ServiceAccount; use its"
            " kubeconfig, or a class with auth.model token"
        )
    return match["namespace"], match["name"]
