"""Discovery of the paths under which a control plane serves a kind."""

from __future__ import annotations

import re
from typing import Any, Final

from kplane.provider import Client, NotFound, Resource

__all__ = ["Discovery"]

_PLURAL: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class Discovery:
    """Kinds that a control plane serves, requested once for each group and version."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, dict[str, Resource]] = {}

    async def find(self, api_version: str, kind: str, *, again: bool = False) -> Resource | None:
        """Return the resource of a kind; None if the kind is not served. With `again`, the cached answer is ignored.

        `api_version` must have the form of an apiVersion. Raises the errors of the client.
        """
        if again or api_version not in self._known:
            self._known[api_version] = await self._ask(api_version)
        return self._known[api_version].get(kind)

    async def _ask(self, api_version: str) -> dict[str, Resource]:
        try:
            answer: Any = await self._client.request(
                "GET", f"{'/apis' if '/' in api_version else '/api'}/{api_version}"
            )
        except NotFound:
            return {}
        listed = answer.get("resources") if isinstance(answer, dict) else None
        resources: dict[str, Resource] = {}
        for item in listed if isinstance(listed, list) else ():
            name, kind = (item.get("name"), item.get("kind")) if isinstance(item, dict) else (None, None)
            # Subresources have a slash in their names. The answer comes from the tenant and must not lead to other
            # paths.
            if isinstance(name, str) and isinstance(kind, str) and _PLURAL.fullmatch(name):
                resources.setdefault(kind, Resource(api_version, kind, name, namespaced=item.get("namespaced") is True))
        return resources
