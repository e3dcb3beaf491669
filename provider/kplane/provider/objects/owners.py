"""Owner references, by which Kubernetes deletes owned objects with their owner."""

from __future__ import annotations

from typing import Any

from kplane.provider.client.body import name_of, namespace_of
from kplane.provider.errors import ObjectTaken, ProviderError
from kplane.provider.objects.identity import Object, kind_of, title_of
from kplane.provider.objects.view import View, put_field, view_of

__all__ = ["add_owner", "controller_of", "controller_words", "is_controlled_by", "owner_reference", "set_controller"]


def owner_reference(owner: object, *, controller: bool = False, block_owner_deletion: bool | None = None) -> Object:
    """Return a reference to an owner. An object may have several owners, but only a single `controller`.

    `block_owner_deletion` keeps an owner that is deleted in the foreground until the object is gone. It defaults to
    `controller`, as upstream. Raises ProviderError for an owner without a uid.
    """
    return _reference(view_of(owner), controller=controller, block_owner_deletion=block_owner_deletion)


def _reference(view: View[Any], *, controller: bool, block_owner_deletion: bool | None = None) -> Object:
    api_version, _, kind = kind_of(view.body).rpartition("/")
    reference: Object = {"apiVersion": api_version, "kind": kind, "name": name_of(view.body), "uid": view.uid}
    if controller:
        reference["controller"] = True
    if controller if block_owner_deletion is None else block_owner_deletion:
        reference["blockOwnerDeletion"] = True
    return reference


def set_controller(owner: object, body: object) -> None:
    """Make `owner` the controller of an object, in place. Upstream's `controllerutil.SetControllerReference`.

    Both may be instances of classes; the metadata of a frozen instance must be a dict. Raises ObjectTaken if the object
    has another controller, also a former owner of the same name. Raises ProviderError for an owner in another
    namespace, and for a class whose metadata cannot change or keeps no `ownerReferences`.
    """
    owning, owned = view_of(owner), view_of(body)
    reference, existing = _reference(owning, controller=True), _controller(owned)
    if existing is not None and existing.get("uid") != reference["uid"]:
        raise ObjectTaken(f"{title_of(owned.body)} is controlled by {controller_words(existing, owning.body)}")
    _put(owned, owning, reference)


def add_owner(owner: object, body: object) -> None:
    """Make `owner` an additional owner of an object, in place. An existing reference to it stays as it is.

    Raises ProviderError as `set_controller`.
    """
    owning, owned = view_of(owner), view_of(body)
    added = _reference(owning, controller=False)
    if not any(reference.get("uid") == added["uid"] for reference in _references(owned)):
        _put(owned, owning, added)


def controller_of(body: object) -> Object | None:
    """Return the reference to the controller of an object, or None."""
    return _controller(view_of(body))


def controller_words(controller: Object, owner: Object) -> str:
    """Say which controller an object has in the place of `owner`, and the remedy."""
    title = f"{controller.get('kind')} {controller.get('name')}"
    if (controller.get("kind"), controller.get("name")) != (owner.get("kind"), name_of(owner)):
        return f"{title}; delete or rename it"
    return (
        f"{title} of uid {controller.get('uid')}, an earlier one of this name; the garbage collector of the cluster"
        " deletes it, or delete it yourself"
    )


def is_controlled_by(body: object, owner: object) -> bool:
    """Tell whether `owner` is the controller of an object, by its uid."""
    controller = controller_of(body)
    return controller is not None and controller.get("uid") == view_of(owner).uid


def _put(owned: View[Any], owning: View[Any], reference: Object) -> None:
    namespace = namespace_of(owning.body)
    if namespace is not None and namespace_of(owned.body) != namespace:
        # The garbage collector would look for the owner in the namespace of the object, and delete the object.
        raise ProviderError(
            f"{title_of(owning.body)} cannot own {title_of(owned.body)}: an owner in a namespace owns objects of that"
            " namespace"
        )
    others = [other for other in _references(owned) if other.get("uid") != reference["uid"]]
    owned.body.setdefault("metadata", {})["ownerReferences"] = [*others, reference]
    put_field(owned.given, "metadata", owned.body)


def _controller(view: View[Any]) -> Object | None:
    return next((reference for reference in _references(view) if reference.get("controller") is True), None)


def _references(view: View[Any]) -> list[Object]:
    references = view.read("metadata", "ownerReferences")
    return [item for item in references if isinstance(item, dict)] if isinstance(references, list) else []
