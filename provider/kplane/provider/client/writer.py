"""Writes to an API server: create, replace, patch, apply, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, overload

from kplane.provider.client.body import name_of, namespace_of, query_of, typed
from kplane.provider.client.keys import Named, display_key
from kplane.provider.client.listing import JSON, METADATA_LIST
from kplane.provider.client.resources import Resource
from kplane.provider.client.rest import Object, Params, Rest
from kplane.provider.client.transport import HttpRequest
from kplane.provider.client.typed import Kind, ObjectT, as_kind, kind_and_body, title_of
from kplane.provider.client.written import read_removal
from kplane.provider.errors import ProviderError

__all__ = ["Writer"]

_MERGE_PATCH: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
# JSON is valid YAML, and every version of the API server accepts this media type for server-side apply.
_APPLY_PATCH: Final = "application/apply-patch+yaml"


class Writer(Rest):
    """The write methods of a `Client`; `field_manager` defaults to that of the client."""

    @overload
    async def create(
        self,
        kind: Kind[ObjectT],
        body: Object | ObjectT,
        *,
        namespace: str | None = None,
        field_manager: str | None = None,
    ) -> ObjectT: ...
    @overload
    async def create(
        self, kind: ObjectT, *, namespace: str | None = None, field_manager: str | None = None
    ) -> ObjectT: ...
    async def create(
        self,
        kind: Kind[ObjectT] | ObjectT,
        body: Object | ObjectT | None = None,
        *,
        namespace: str | None = None,
        field_manager: str | None = None,
    ) -> ObjectT:
        """Create an object, given as dict or as instance of a class.

        Fills in apiVersion and kind. `namespace` defaults to that of the body. Raises AlreadyExists. Raises
        ProviderError before the request if a namespaced object has no namespace.
        """
        kind, body = kind_and_body(kind, body)
        resource = await self.resource(kind)
        namespace = namespace if namespace is not None else namespace_of(body)
        path = self._path(resource, namespace=namespace, write=True)
        metadata = body.get("metadata") or {}
        name = str(metadata.get("name") or metadata.get("generateName") or "")
        if resource.namespaced and namespace is None:
            raise ProviderError(
                f"failed to create {resource} {name!r}: the kind is namespaced, and there is no namespace; set"
                " metadata.namespace, or give namespace=..."
            )
        key = display_key(name, namespace=namespace)
        obj = await self._write("POST", path, resource, typed(resource, body), key=key, field_manager=field_manager)
        return as_kind(kind, obj, source=self.config.server)

    @overload
    async def replace(
        self,
        kind: Kind[ObjectT],
        body: Object | ObjectT,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> ObjectT: ...
    @overload
    async def replace(
        self,
        kind: ObjectT,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> ObjectT: ...
    async def replace(
        self,
        kind: Kind[ObjectT] | ObjectT,
        body: Object | ObjectT | None = None,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> ObjectT:
        """Replace an object, given as dict or as instance. Raises Conflict if the object has changed since it was read.

        Fields that the class of an instance does not keep are removed.
        """
        kind, body = kind_and_body(kind, body)
        resource = await self.resource(kind)
        name, namespace = name_of(body), namespace if namespace is not None else namespace_of(body)
        path = self._path(resource, name, namespace=namespace, subresource=subresource, write=True)
        key = display_key(name, namespace=namespace)
        obj = await self._write("PUT", path, resource, typed(resource, body), key=key, field_manager=field_manager)
        return as_kind(kind, obj, source=self.config.server)

    async def patch(
        self,
        kind: Kind[ObjectT],
        key: str | Named,
        body: Object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> ObjectT:
        """Change an object with a JSON merge patch (RFC 7386). Raises NotFound, and Invalid for a bad result."""
        obj = await self._patch(
            kind,
            key,
            body,
            namespace=namespace,
            subresource=subresource,
            field_manager=field_manager,
            content_type=_MERGE_PATCH,
        )
        return as_kind(kind, obj, source=self.config.server)

    async def json_patch(
        self,
        kind: Kind[ObjectT],
        key: str | Named,
        operations: Sequence[Object],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> ObjectT:
        """Change an object with a JSON patch (RFC 6902). Raises as `patch`; a failed `test` raises Invalid too."""
        obj = await self._patch(
            kind,
            key,
            operations,
            namespace=namespace,
            subresource=subresource,
            field_manager=field_manager,
            content_type=_JSON_PATCH,
        )
        return as_kind(kind, obj, source=self.config.server)

    @overload
    async def apply(
        self,
        kind: Kind[ObjectT],
        body: Object | ObjectT,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        force: bool = False,
        field_manager: str | None = None,
    ) -> ObjectT: ...
    @overload
    async def apply(
        self,
        kind: ObjectT,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        force: bool = False,
        field_manager: str | None = None,
    ) -> ObjectT: ...
    async def apply(
        self,
        kind: Kind[ObjectT] | ObjectT,
        body: Object | ObjectT | None = None,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        force: bool = False,
        field_manager: str | None = None,
    ) -> ObjectT:
        """Apply an object server-side, given as dict or as instance: create it, or own exactly these fields.

        Fills in apiVersion and kind; name and namespace are those of the body. Raises FieldConflict if another manager
        owns a field; `force` takes over such fields. Raises ProviderError without a field
        manager of client or call.
        """
        kind, body = kind_and_body(kind, body)
        if not (field_manager or self.field_manager):
            raise ProviderError(
                f"failed to apply {title_of(kind)}: there is no field manager to own its fields; give"
                " Client(field_manager=...), or apply(field_manager=...)"
            )
        resource = await self.resource(kind)
        namespace = namespace if namespace is not None else namespace_of(body)
        obj = await self._patch(
            resource,
            name_of(body),
            typed(resource, body),
            namespace=namespace,
            subresource=subresource,
            field_manager=field_manager,
            content_type=_APPLY_PATCH,
            params={"force": force},
        )
        return as_kind(kind, obj, source=self.config.server)

    async def delete(
        self,
        kind: Kind[Any],
        key: str | Named,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str | None = None,
        grace_period_seconds: int | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Delete an object. Raises NotFound, and Conflict if `uid` or `resource_version` differ.

        `propagation` is Background, Foreground or Orphan. `grace_period_seconds` is the time that a Pod has to end.
        With `dry_run`, the server answers as usual, but keeps the object. Returns the object if finalizers
        or the grace period hold it, else a Status.
        """
        resource, name, namespace = await self._locate(kind, key, namespace)
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if dry_run:
            options["dryRun"] = ["All"]
        given = {"uid": uid, "resourceVersion": resource_version}
        if preconditions := {key: value for key, value in given.items() if value is not None}:
            options["preconditions"] = preconditions
        if propagation is not None:
            options["propagationPolicy"] = propagation
        path = self._path(resource, name, namespace=namespace, write=True)
        shown = display_key(name, namespace=namespace)
        answer = await self._object("DELETE", path, resource, key=shown, body=options)
        if not dry_run:
            self.note_write(read_removal(resource, answer, name=name, namespace=namespace, uid=uid))
        return answer

    async def delete_all(self, kind: Kind[Any], *, namespace: str | None = None, label_selector: str) -> None:
        """Delete all objects with a label in one call; a namespaced kind needs a `namespace`.

        The answer, which repeats all objects, is dropped. Raises ProviderError for an empty selector.
        """
        resource = await self.resource(kind)
        if not label_selector:
            raise ProviderError(f"without a label all {resource.plural} would be deleted")
        if resource.namespaced and namespace is None:
            raise ProviderError(f"{resource.plural} are namespaced: a namespace is needed")
        path, query = self._path(resource, namespace=namespace, write=True), query_of({"labelSelector": label_selector})
        request = self._adapted(HttpRequest("DELETE", path, query, accept=METADATA_LIST, kind=resource.name))
        await self._calls.drop(request)

    async def _patch(
        self,
        kind: Kind[Any],
        key: str | Named,
        body: object,
        *,
        namespace: str | None,
        subresource: str | None,
        field_manager: str | None,
        content_type: str,
        params: Params | None = None,
    ) -> Object:
        resource, name, namespace = await self._locate(kind, key, namespace)
        return await self._write(
            "PATCH",
            self._path(resource, name, namespace=namespace, subresource=subresource, write=True),
            resource,
            body,
            key=display_key(name, namespace=namespace),
            field_manager=field_manager,
            content_type=content_type,
            params=params,
        )

    async def _write(
        self,
        method: str,
        path: str,
        resource: Resource,
        body: Any,
        *,
        key: str,
        field_manager: str | None,
        content_type: str = JSON,
        params: Params | None = None,
    ) -> Object:
        query: Params = {
            "fieldManager": field_manager or self.field_manager,
            "fieldValidation": self.field_validation,
            **(params or {}),
        }
        return await self._object(method, path, resource, key=key, body=body, params=query, content_type=content_type)
