"""Which Secrets the operator follows, namespace by namespace."""

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
    told: set[Watched] = set()
    wanted = Wanted(stores, installed=installed, bound=bound, changed=told.add)
    return {each for each in told if each in wanted}


def test_a_namespace_is_followed_while_it_has_a_control_plane_and_the_operator_may_read_it() -> None:
    stores = Stores()
    for name in ("acme", "globex"):
        stores.control_planes.apply(obj(name))
        stores.namespaces.apply(obj(f"kplane-cp-{name}"))
    # It keeps the data of a control plane that is gone.
    stores.namespaces.apply(obj("kplane-cp-retained"))
    stores.control_planes.apply(obj("initech"))
    bound = {"kplane-cp-acme", "kplane-cp-retained", "kplane-cp-initech"}
    assert followed(stores, installed={"kplane-system"}, bound=bound) == {_OWN, Watched("kplane-cp-acme", OWN)}
    stores.namespaces.remove(obj("kplane-cp-acme", 2))
    assert followed(stores, installed={"kplane-system"}, bound=bound) == {_OWN}
    with_gateway = followed(stores, installed={"kplane-system", "kplane-gateway"}, bound=bound)
    assert with_gateway == {_OWN, Watched("kplane-gateway", OWN)}


def test_namespaces_of_users_are_those_that_are_named() -> None:
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


def test_a_namespace_of_users_is_followed_until_the_last_one_names_it_no_longer() -> None:
    stores, told = Stores(), list[Watched]()
    wanted = Wanted(stores, installed=(), bound=(), changed=told.append)
    platform = Watched("platform", FOR_ENDPOINTS)
    for name in ("hooli", "initech"):
        stores.endpoints.apply(obj(name, credentialsSecretRef={"name": name, "namespace": "platform"}))
    stores.endpoints.remove(obj("hooli", 2))
    assert platform in wanted
    stores.endpoints.apply(obj("initech", 2))
    assert platform not in wanted
    assert told == [platform] * 4


def test_only_a_change_of_what_is_followed_calls_back() -> None:
    stores, told, turned = Stores(), list[Watched](), list[str]()
    Wanted(stores, installed=(), bound=(), changed=told.append)
    listen(stores, turned.append)
    secret = {"name": "admin", "namespace": "platform"}
    stores.endpoints.apply(obj("hooli", credentialsSecretRef=secret))
    stores.control_planes.apply(obj("acme"))
    stores.namespaces.apply(obj("kplane-cp-acme"))
    came = [Watched("platform", FOR_ENDPOINTS), *[Watched("kplane-cp-acme", OWN)] * 2]
    assert told == came
    stores.endpoints.apply(obj("hooli", 2, credentialsSecretRef=secret, endpoint="https://192.0.2.1"))
    stores.control_planes.apply(obj("acme", 2, version="v1.36.3"))
    stores.namespaces.apply(obj("kplane-cp-acme", 2))
    assert told == came
    stores.endpoints.apply(obj("hooli", 3))
    stores.control_planes.remove(obj("acme", 3))
    stores.namespaces.remove(obj("kplane-cp-acme", 3))
    assert (told, turned) == (came * 2, [])


def test_a_control_plane_that_falls_asleep_or_wakes_calls_back() -> None:
    stores, calls = Stores(), list[tuple[str, bool]]()
    listen(stores, lambda namespace: calls.append((namespace, sleeps(stores, namespace))))
    for number, state in enumerate(("False", "True", "True", "False"), start=1):
        condition = {"type": "Hibernated", "status": state, "reason": "x"}
        stores.control_planes.apply(obj("acme", number) | {"status": {"conditions": [condition]}})
    assert calls == [("kplane-cp-acme", True), ("kplane-cp-acme", False)]
    assert not sleeps(stores, "kplane-cp-globex")
