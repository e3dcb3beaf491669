"""Provider of ControlPlaneEndpoints: the address comes from the object, the credentials from a Secret by its name.

The design follows `--cluster-source=controlplaneendpoint` with `--cluster-kubeconfig-secret-template`.

```python
template = SecretTemplate("kplane-cp-{name}/controlplane-{name}-kubeconfig")
manager = Manager(client.config, EndpointProvider(client, secrets=template), name="my-operator")
```

The provider watches the cluster-scoped `controlplaneendpoints` of controlplane.kplane.dev/v1alpha1. A cluster has the
endpoint's name. Its address is `status.endpoint`, else `spec.endpoint`. The Secret that the template names has a
kubeconfig under the key `kubeconfig`. CA and user of the kubeconfig are used, its address is ignored. All values of the
Secret are the cluster's `credentials`. Kubeconfigs with exec plugins or files are refused.

A cluster is engaged if its endpoint has an address, and the condition Ready is missing or not False. While Ready is
False, the engaged cluster stays. The Secret is watched: renewed credentials of the same user keep the engagement.
Another address, CA or user makes a new engagement. A missing or invalid Secret is logged, and the engaged cluster
stays. The cluster of an endpoint is disengaged if the endpoint has no address, is being deleted, is gone, or no longer
matches the selector.

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
    """Template for the name of an endpoint's Secret: `<namespace>/<name>`, such as `fleet/{name}-kubeconfig`.

    `{name}` is the endpoint's name. With `namespace_scope` all Secrets are in that namespace, and the template may omit
    the namespace or write `{namespace}`. Without `{name}` all endpoints share a single Secret. Raises ProviderError for
    an invalid template.
    """

    def __init__(self, template: str, *, namespace_scope: str | None = None) -> None:
        self._text = template
        self._scope = namespace_scope
        if namespace_scope is not None and not DNS_LABEL.fullmatch(namespace_scope):
            raise ProviderError(f"{namespace_scope!r} cannot be the name of a namespace")
        placeholders = _placeholders(template)
        unknown = sorted(placeholders - _PLACEHOLDERS)
        if unknown:
            raise ProviderError(
                f"the Secret template {template!r} has unknown placeholders: {', '.join(unknown)}; there are {{name}}"
                " and {namespace}"
            )
        if namespace_scope is None and "namespace" in placeholders:
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
        sample = self.secret_of("x")
        if sample is None:
            raise ProviderError(f"the Secret template {template!r} makes no names of a namespace and a Secret")
        if namespace_scope is not None and (sample[0] != namespace_scope or "name" in _placeholders(self._namespace)):
            raise ProviderError(
                f"the Secret template {template!r} leads out of the namespace scope {namespace_scope!r}; leave the"
                " namespace out of it"
            )

    @override
    def __repr__(self) -> str:
        return f"SecretTemplate({self._text!r})"

    def secret_of(self, name: str) -> Key | None:
        """Return namespace and name of the Secret of an endpoint `name`; None if these names are invalid."""
        values = {"name": name, "namespace": self._scope}
        namespace, secret = self._namespace.format_map(values), self._name.format_map(values)
        return (namespace, secret) if DNS_LABEL.fullmatch(namespace) and DNS_SUBDOMAIN.fullmatch(secret) else None


class EndpointProvider:
    """Engages a cluster for every ControlPlaneEndpoint.

    `client` reaches the management cluster, and belongs to the caller. `secrets` names the Secrets with credentials,
    and `label_selector` (syntax of the API) selects endpoints. `mine` and `look_again` are as in RegistrationProvider.
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
        """Tell whether the initial list of endpoints was read."""
        return self._objects.has_synced()

    def endpoint(self, name: str) -> Object | None:
        """Return an endpoint as last observed, or None."""
        return self._objects.get(name)

    def names(self) -> list[str]:
        """Return the names of all observed endpoints."""
        return self._objects.names()

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the name of each endpoint that is new, changed or gone."""
        self._objects.listen(listener)

    def look_again(self) -> None:
        """Call `mine` for each endpoint again, and engage or remove its cluster."""
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
    """Return the address of an endpoint; None without an address, or if the endpoint is being deleted."""
    address = section(endpoint, "status").get("endpoint") or section(endpoint, "spec").get("endpoint")
    if endpoint["metadata"].get("deletionTimestamp") or not isinstance(address, str) or not address:
        return None
    return address


def _placeholders(template: str) -> set[str]:
    placeholders = set()
    try:
        for _, name, form, conversion in string.Formatter().parse(template):
            if name is not None:
                placeholders.add(name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else ""))
    except ValueError as error:
        raise ProviderError(f"the Secret template {template!r} has a brace without its other one") from error
    return placeholders
