"""Reconciles ControlPlaneEndpoint: publishes the addresses in force, and whether somebody answers there."""

from __future__ import annotations

from typing import Final

from api import ControlPlane, ControlPlaneEndpoint
from api.names import CA_KEY, KUBECONFIG_KEY, kubeconfig_secret_name, management_namespace
from controlplane_operator.backoff import Backoff, jittered
from controlplane_operator.cache import Key
from controlplane_operator.management import Management
from controlplane_operator.secrets import data_of, find_secret
from controlplane_operator.status import with_condition
from controlplane_operator.trouble import Trouble
from provider import ApiError, Client, ClusterConfig, Forbidden, KubeconfigError, Result, Unauthorized, Unreachable
from provider.logs import log_fields

__all__ = ["ControlPlaneEndpointReconciler"]

_PROBE_SECONDS: Final = 5.0
_PERIOD_SECONDS: Final = 60.0
_URLS: Final = ("endpoint", "external_endpoint", "join_endpoint")


class ControlPlaneEndpointReconciler:
    """Keeps the status of endpoints, and probes them again and again."""

    def __init__(self, management: Management, *, default_credentials: ClusterConfig | None) -> None:
        """`default_credentials` tell the CA of endpoints that name no Secret themselves."""
        self._management = management
        self._default = default_credentials
        self._backoff: Backoff[Key] = Backoff(first_seconds=1.0)

    async def reconcile(self, key: Key) -> Result | None:
        """Publish the URLs of one endpoint and probe it."""
        obj = self._management.stores.endpoints.get(key)
        if obj is None:
            self._backoff.forget(key)
            return None
        with log_fields(object=f"ControlPlaneEndpoint/{key[1]}"):
            current = ControlPlaneEndpoint.model_validate(obj)
            try:
                await self._probe(current)
            except Trouble as trouble:
                await self._publish(current, trouble)
                return None if trouble.waits_for_event else Result(self._backoff.next(key))
            await self._publish(current, None)
            self._backoff.forget(key)
            return Result(jittered(_PERIOD_SECONDS))

    async def _probe(self, endpoint: ControlPlaneEndpoint) -> None:
        url = endpoint.spec.endpoint or endpoint.status.endpoint
        if url is None:
            raise Trouble(
                "EndpointPending", "neither spec.endpoint nor status.endpoint is set yet", waits_for_event=True
            )
        try:
            # Nobody is let in for a probe, so nothing is shown: only the CA is used.
            config = ClusterConfig(server=url, ca_data=await self._ca(endpoint))
            async with Client(config, timeout_seconds=_PROBE_SECONDS) as client:
                await client.probe("/readyz")
        except (Unauthorized, Forbidden):
            return
        except Unreachable as error:
            raise Trouble(error.reason, str(error)) from error
        except ApiError as error:
            raise Trouble("EndpointUnreachable", f"{url}/readyz answered {error.status}: {error.message}") from error
        except KubeconfigError as error:
            raise Trouble("EndpointInvalid", str(error)) from error

    async def _ca(self, endpoint: ControlPlaneEndpoint) -> bytes | None:
        reference = endpoint.spec.credentials_secret_ref
        if reference is not None:
            secret = await find_secret(self._management, namespace=reference.namespace, name=reference.name)
            kubeconfig = data_of(secret).get(KUBECONFIG_KEY) if secret is not None else None
            return ClusterConfig.from_kubeconfig(kubeconfig).ca_data if kubeconfig is not None else None
        owner = next(
            (ref for ref in endpoint.metadata.owner_references if ref.kind == ControlPlane.resource.kind), None
        )
        if owner is not None:
            key = management_namespace(owner.name), kubeconfig_secret_name(owner.name)
            published = self._management.stores.secrets.get(key)
            if published is None:
                raise Trouble("EndpointPending", f"control plane {owner.name} has not published its CA yet")
            return data_of(published).get(CA_KEY)
        return self._default.ca_data if self._default is not None else None

    async def _publish(self, current: ControlPlaneEndpoint, trouble: Trouble | None) -> None:
        conditions = current.status.conditions
        if trouble is None:
            kinds = {"Reachable": ("True", "Answered", "/readyz answered"), "Ready": ("True", "Reconciled", "in use")}
        else:
            reachable = "Unknown" if trouble.reason in {"EndpointPending", "EndpointInvalid"} else "False"
            told = trouble.reason, trouble.message
            kinds = {"Reachable": (reachable, *told), "Ready": ("False", *told)}
        for kind, (status, reason, message) in kinds.items():
            conditions = with_condition(
                conditions,
                of=current,
                type=kind,
                status="True" if status == "True" else "Unknown" if status == "Unknown" else "False",
                reason=reason,
                message=message,
            )
        urls = {field: getattr(current.spec, field) or getattr(current.status, field) for field in _URLS}
        status_now = current.status.model_copy(
            update={**urls, "observed_generation": current.metadata.generation, "conditions": conditions}
        )
        await self._management.status.write(
            self._management.stores.endpoints,
            current,
            status=status_now,
            yield_fields=("endpoint", "externalEndpoint", "joinEndpoint"),
        )
