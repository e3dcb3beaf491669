"""Namespaces in which the operator watches Secrets."""

from __future__ import annotations

from typing import Any

from kplane.controlplane_operator.watch.secrets import (
    FOR_ENDPOINTS,
    FOR_REGISTRATIONS,
    OWN,
    Wanted,
    Watched,
    listen,
    sleeps,
)
from kplane.controlplane_operator.watch.stores import Stores

_OWN = Watched("kplane-system", OWN)


def obj(name: str, number: int = 1, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(number)}, "spec": spec}


def followed(stores: Stores, *, installed: set[str], bound: set[str]) -> set[Watched]:
    changes: set[Watched] = set()
    wanted_watches = Wanted(stores, installed=installed, bound=bound, changed=changes.add)
    return {watch for watch in changes if watch in wanted_watches}


def test_namespace_is_watched_with_control_plane_and_role_binding() -> None:
    stores = Stores()
    for name in ("acme", "globex"):
        stores.control_planes.apply(obj(name))
        stores.namespaces.apply(obj(f"kplane-cp-{name}"))
    # This namespace keeps the data of a deleted control plane.
    stores.namespaces.apply(obj("kplane-cp-retained"))
    stores.control_planes.apply(obj("initech"))
    bound = {"kplane-cp-acme", "kplane-cp-retained", "kplane-cp-initech"}
    assert followed(stores, installed={"kplane-system"}, bound=bound) == {_OWN, Watched("kplane-cp-acme", OWN)}
    stores.namespaces.remove(obj("kplane-cp-acme", 2))
    assert followed(stores, installed={"kplane-system"}, bound=bound) == {_OWN}
    with_gateway = followed(stores, installed={"kplane-system", "kplane-gateway"}, bound=bound)
    assert with_gateway == {_OWN, Watched("kplane-gateway", OWN)}


def test_user_namespaces_are_watched_only_if_named() -> None:
    stores = Stores()
    stores.endpoints.apply(obj("hooli", credentialsSecretRef={"name": "admin", "namespace": "platform"}))
    stores.endpoints.apply(obj("plain"))
    reference = {"controlPlaneRef": {"name": "acme"}}
    for name, secret, namespace in (
        ("published", "controlplane-acme-kubeconfig", "kplane-cp-acme"),
        ("theirs", "theirs", "kplane-cp-acme"),
        ("foreign", "private", "team"),
    ):
        named = {"kubeconfigSecretRef": {"name": secret, "namespace": namespace}}
        stores.registrations.apply(obj(name, **reference, **named))
    assert followed(stores, installed={"kplane-system"}, bound=set()) == {
        _OWN,
        Watched("platform", FOR_ENDPOINTS),
        Watched("kplane-cp-acme", FOR_REGISTRATIONS),
        Watched("team", FOR_REGISTRATIONS),
    }


def test_user_namespace_is_watched_until_last_reference_is_removed() -> None:
    stores, changes = Stores(), list[Watched]()
    wanted_watches = Wanted(stores, installed=(), bound=(), changed=changes.append)
    platform = Watched("platform", FOR_ENDPOINTS)
    for name in ("hooli", "initech"):
        stores.endpoints.apply(obj(name, credentialsSecretRef={"name": name, "namespace": "platform"}))
    stores.endpoints.remove(obj("hooli", 2))
    assert platform in wanted_watches
    stores.endpoints.apply(obj("initech", 2))
    assert platform not in wanted_watches
    assert changes == [platform] * 4


def test_callback_runs_only_when_watched_namespaces_change() -> None:
    stores, changes, turned = Stores(), list[Watched](), list[str]()
    Wanted(stores, installed=(), bound=(), changed=changes.append)
    listen(stores, turned.append)
    secret = {"name": "admin", "namespace": "platform"}
    stores.endpoints.apply(obj("hooli", credentialsSecretRef=secret))
    stores.control_planes.apply(obj("acme"))
    stores.namespaces.apply(obj("kplane-cp-acme"))
    additions = [Watched("platform", FOR_ENDPOINTS), *[Watched("kplane-cp-acme", OWN)] * 2]
    assert changes == additions
    stores.endpoints.apply(obj("hooli", 2, credentialsSecretRef=secret, endpoint="https://192.0.2.1"))
    stores.control_planes.apply(obj("acme", 2, version="v1.36.3"))
    stores.namespaces.apply(obj("kplane-cp-acme", 2))
    assert changes == additions
    stores.endpoints.apply(obj("hooli", 3))
    stores.control_planes.remove(obj("acme", 3))
    stores.namespaces.remove(obj("kplane-cp-acme", 3))
    assert (changes, turned) == (additions * 2, [])


def test_sleep_and_wake_call_the_listener() -> None:
    stores, calls = Stores(), list[tuple[str, bool]]()
    listen(stores, lambda namespace: calls.append((namespace, sleeps(stores, namespace))))
    for number, state in enumerate(("False", "True", "True", "False"), start=1):
        condition = {"type": "Hibernated", "status": state, "reason": "x"}
        stores.control_planes.apply(obj("acme", number) | {"status": {"conditions": [condition]}})
    assert calls == [("kplane-cp-acme", True), ("kplane-cp-acme", False)]
    assert not sleeps(stores, "kplane-cp-globex")
