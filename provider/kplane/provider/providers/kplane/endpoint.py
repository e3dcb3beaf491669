"""Clusters from ControlPlaneEndpoints: the address from the object, the credentials from a Secret by its name.

The design is that of `--cluster-source=controlplaneendpoint` with `--cluster-kubeconfig-secret-template`.

```python
template = SecretTemplate("kplane-cp-{name}/controlplane-{name}-kubeconfig")
manager = Manager(client.config, EndpointProvider(client, secrets=template), name="my-operator")
```

It watches the cluster-scoped `controlplaneendpoints` of controlplane.kplane.dev/v1alpha1; the cluster has the
endpoint's name. Its address is `status.endpoint`, else `spec.endpoint`. Its credentials are the key `kubeconfig` of the
Secret that the template names; all values of that Secret are the cluster's `credentials`. CA and user of that
kubeconfig are used, its address is not. Exec plugins and files are refused.

An endpoint counts if it has an address, and its condition Ready is missing or not False; while it is False, the engaged
cluster stays. The Secret is watched: renewed credentials of the same user keep the engagement, another address, CA or
user makes a new one. A missing or invalid Secret is logged, and the engaged cluster stays. An endpoint without an
address, that is being deleted, is gone, or no longer matches the selector, is disengaged.

The identity of `client` needs `list` and `watch` on `controlplaneendpoints`, and `get` and `watch` on the Secrets.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Final

from typing_extensions import override

from kplane.api.names import API_VERSION, KUBECONFIG_KEY
from kplane.provider.cache.entry import Key
from kplane.provider.client.client import Client
from kplane.provider.client.resources import DNS_LABEL, DNS_SUBDOMAIN, Resource
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet
from kplane.provider.errors import KubeconfigError, ProviderError
from kplane.provider.providers._support.condition import is_false, section
from kplane.provider.providers._support.object_backed import (
    KEEP,
    FromSecret,
    Keep,
    Object,
    ObjectBackedProvider,
    ReadKubeconfig,
)
from kplane.provider.providers._support.secret import value_of

__all__ = ["ENDPOINTS", "EndpointProvider", "SecretTemplate", "address_of"]

ENDPOINTS: Final = Resource(API_VERSION, "ControlPlaneEndpoint", "controlplaneendpoints", namespaced=False)

_PLACEHOLDERS: Final = frozenset({"name", "namespace"})


class SecretTemplate:
    """Names the Secret with an endpoint's kubeconfig: `<namespace>/<name>`, such as `fleet/{name}-kubeconfig`.

    `{name}` is the endpoint's name. With `namespace_scope` all Secrets are in that namespace, which may then be left
    out or written `{namespace}`. Without `{name}` all endpoints share one Secret. Raises ProviderError if it is no
    valid template.
    """

    def __init__(self, template: str, *, namespace_scope: str | None = None) -> None:
        self._text = template
        self._scope = namespace_scope
        if namespace_scope is not None and not DNS_LABEL.fullmatch(namespace_scope):
            raise ProviderError(f"{namespace_scope!r} cannot be the name of a namespace")
        used = _placeholders(template)
        unknown = sorted(used - _PLACEHOLDERS)
        if unknown:
            raise ProviderError(
                f"the Secret template {template!r} has unknown placeholders: {', '.join(unknown)}; there are {{name}}"
                " and {namespace}"
            )
        if namespace_scope is None and "namespace" in used:
            raise ProviderError(
                f"the Secret template {template!r} has {{namespace}}, but endpoints are in none; write the namespace of"
                " the Secrets, or give a namespace scope"
            )
        if namespace_scope is None and "/" not in template:
            raise ProviderError(
                f"the Secret template {template!r} names no namespace; write <namespace>/<name>, or give a namespace"
                " scope"
            )
        self._namespace, self._name = template.split("/", 1) if "/" in template else ("{namespace}", template)
        found = self.secret_of("x")
        if found is None:
            raise ProviderError(f"the Secret template {template!r} makes no names of a namespace and a Secret")
        if namespace_scope is not None and (found[0] != namespace_scope or "name" in _placeholders(self._namespace)):
            raise ProviderError(
                f"the Secret template {template!r} leads out of the namespace scope {namespace_scope!r}; leave the"
                " namespace out of it"
            )

    @override
    def __repr__(self) -> str:
        return f"SecretTemplate({self._text!r})"

    def secret_of(self, name: str) -> Key | None:
        """Return namespace and name of an endpoint's Secret; None if they are no valid names."""
        values = {"name": name, "namespace": self._scope}
        namespace, secret = self._namespace.format_map(values), self._name.format_map(values)
        return (namespace, secret) if DNS_LABEL.fullmatch(namespace) and DNS_SUBDOMAIN.fullmatch(secret) else None


class EndpointProvider:
    """Engages a cluster for every ControlPlaneEndpoint.

    `client` reaches the management cluster, and belongs to the caller. `secrets` names the Secrets with credentials,
    and `label_selector` (the API's) selects endpoints. `mine` and `look_again` are as in RegistrationProvider.
    """

    def __init__(
        self,
        client: Client,
        *,
        secrets: SecretTemplate,
        label_selector: str | None = None,
        mine: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        self._secrets = secrets
        self._objects = ObjectBackedProvider(
            client, ENDPOINTS, plan=self._plan, what="endpoint", label_selector=label_selector, mine=mine
        )

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "endpoint"

    def has_synced(self) -> bool:
        """Tell whether all endpoints were read once."""
        return self._objects.has_synced()

    def endpoint(self, name: str) -> Object | None:
        """Return an endpoint as last seen, or None."""
        return self._objects.get(name)

    def names(self) -> list[str]:
        """Return the names of all known endpoints."""
        return self._objects.names()

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the name of each endpoint that is new, changed or gone."""
        self._objects.listen(listener)

    def look_again(self) -> None:
        """Follow the clusters that are this process's own now, and forget those that are not."""
        self._objects.look_again()

    async def run(self, fleet: Fleet) -> None:
        """Follow endpoints and their Secrets until cancelled."""
        await self._objects.run(fleet)

    def _plan(self, endpoint: Object) -> FromSecret | Keep | None:
        address = address_of(endpoint)
        if address is None:
            return None
        if is_false(endpoint, "Ready"):
            return KEEP
        name = endpoint["metadata"]["name"]
        secret = self._secrets.secret_of(name)
        if secret is None:
            raise KubeconfigError(f"no Secret can be called what {self._secrets!r} makes of its name")

        def make(values: Mapping[str, bytes], read: ReadKubeconfig) -> Cluster:
            config = read(value_of(values, KUBECONFIG_KEY)).with_server(address)
            return Cluster(name, config=config, credentials=values)

        return FromSecret(*secret, make)


def address_of(endpoint: Object) -> str | None:
    """Return the address that an endpoint asks a cluster for, or None."""
    address = section(endpoint, "status").get("endpoint") or section(endpoint, "spec").get("endpoint")
    if endpoint["metadata"].get("deletionTimestamp") or not isinstance(address, str) or not address:
        return None
    return address


def _placeholders(template: str) -> set[str]:
    found = set()
    try:
        for _, name, form, conversion in string.Formatter().parse(template):
            if name is not None:
                found.add(name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else ""))
    except ValueError as error:
        raise ProviderError(f"the Secret template {template!r} has a brace without its other one") from error
    return found
