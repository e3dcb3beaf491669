"""Kind, names and uid of an object."""

from __future__ import annotations

from typing import Any

from kplane.provider.client.body import name_of, namespace_of
from kplane.provider.errors import ProviderError

__all__ = ["Object", "kind_of", "title_of", "uid_of"]

Object = dict[str, Any]


def kind_of(body: Object) -> str:
    """Return the kind, such as `apps/v1/Deployment`. Raises ProviderError if apiVersion or kind is missing."""
    api_version, kind = body.get("apiVersion"), body.get("kind")
    if not (isinstance(api_version, str) and isinstance(kind, str) and api_version and kind):
        raise ProviderError(f"object {name_of(body)!r} has no apiVersion or no kind: set both")
    return f"{api_version}/{kind}"


def title_of(body: Object) -> str:
    """Return kind and name for messages, such as `ConfigMap default/settings`."""
    return f"{body.get('kind', 'object')} {'/'.join(filter(None, (namespace_of(body), name_of(body))))}"


def uid_of(body: Object) -> str:
    """Return the uid. Raises ProviderError for an object that does not come from an API server."""
    uid = body.get("metadata", {}).get("uid")
    if not isinstance(uid, str) or not uid:
        raise ProviderError(f"{title_of(body)} has no uid: read it from the API server")
    return uid
