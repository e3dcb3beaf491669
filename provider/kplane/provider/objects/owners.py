"""Owner references, by which Kubernetes deletes owned objects with their owner."""

from __future__ import annotations

from kplane.provider.client.body import name_of, namespace_of
from kplane.provider.errors import ObjectTaken, ProviderError
from kplane.provider.objects.identity import Object, kind_of, title_of, uid_of

__all__ = ["add_owner", "controller_of", "controller_words", "is_controlled_by", "owner_reference", "set_controller"]


def owner_reference(owner: Object, *, controller: bool = False, block_owner_deletion: bool | None = None) -> Object:
    """Return a reference to an owner. An object may have several owners, but only a single `controller`.

    `block_owner_deletion` keeps an owner that is deleted in the foreground until the object is gone. It defaults to
    `controller`, as upstream. Raises ProviderError for an owner without a uid.
    """
    kind_of(owner)
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": name_of(owner), "uid": uid_of(owner)}
    if controller:
        reference["controller"] = True
    if controller if block_owner_deletion is None else block_owner_deletion:
        reference["blockOwnerDeletion"] = True
    return reference


def set_controller(owner: Object, body: Object) -> None:
    """Make `owner` the controller of an object, in place. Upstream's `controllerutil.SetControllerReference`.

    Raises ObjectTaken if the object has another controller, also a former owner of the same name. Raises ProviderError
    for an owner in another namespace.
    """
    existing = controller_of(body)
    if existing is not None and existing.get("uid") != uid_of(owner):
        raise ObjectTaken(f"{title_of(body)} is controlled by {controller_words(existing, owner)}")
    _put(body, owner, owner_reference(owner, controller=True))


def add_owner(owner: Object, body: Object) -> None:
    """Make `owner` an additional owner of an object, in place. An existing reference to it stays as it is.

    Raises ProviderError for an owner in another namespace.
    """
    if not any(reference.get("uid") == uid_of(owner) for reference in _references(body)):
        _put(body, owner, owner_reference(owner))


def controller_of(body: Object) -> Object | None:
    """Return the reference to the controller of an object, or None."""
    return next((reference for reference in _references(body) if reference.get("controller") is True), None)


def controller_words(controller: Object, owner: Object) -> str:
    """Say which controller an object has in the place of `owner`, and the remedy."""
    title = f"{controller.get('kind')} {controller.get('name')}"
    if (controller.get("kind"), controller.get("name")) != (owner.get("kind"), name_of(owner)):
        return f"{title}; delete or rename it"
    return (
        f"{title} of uid {controller.get('uid')}, an earlier one of this name; the garbage collector of the cluster"
        " deletes it, or delete it yourself"
    )


def is_controlled_by(body: Object, owner: Object) -> bool:
    """Tell whether `owner` is the controller of an object, by its uid."""
    controller = controller_of(body)
    return controller is not None and controller.get("uid") == uid_of(owner)


def _put(body: Object, owner: Object, reference: Object) -> None:
    namespace = namespace_of(owner)
    if namespace is not None and namespace_of(body) != namespace:
        # The garbage collector would look for the owner in the namespace of the object, and delete the object.
        raise ProviderError(
            f"{title_of(owner)} cannot own {title_of(body)}: an owner in a namespace owns objects of that namespace"
        )
    others = [other for other in _references(body) if other.get("uid") != reference["uid"]]
    body.setdefault("metadata", {})["ownerReferences"] = [*others, reference]


def _references(body: Object) -> list[Object]:
    references = body.get("metadata", {}).get("ownerReferences")
    return [item for item in references if isinstance(item, dict)] if isinstance(references, list) else []
