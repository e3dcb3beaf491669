"""Clusters from Milo: the control plane of every project.

Upstream: milo-os/milo, pkg/multicluster-runtime/milo.

```python
async with Client(ClusterConfig.in_cluster()) as client:
    manager = Manager(client.config, MiloProvider(client, label_selector="tier=paid"), name="my-operator")
```

The mode selects the watched kind and the condition of a ready project:

| | projects (default) | `internal_service_discovery=True` |
|---|---|---|
| kind | resourcemanager.miloapis.com/v1alpha1 Project | infrastructure.miloapis.com/v1alpha1 ProjectControlPlane |
| condition | Ready | ControlPlaneReady |
| server | server of `project_config`, with the project's path | milo-apiserver.project-<name>.svc.cluster.local:6443 |

Both kinds are cluster-scoped; the cluster is named as the object. All projects share the
identity and the CA of `project_config`, by default the configuration of `client`. In the first mode all projects have
the same host, and their clients share its connections, as the clients of a Manager do.

A project that stops being ready, is gone, or no longer matches the selector, is disengaged. A project that is being
deleted stays while it is ready, so that its controllers can clean up. An invalid project, such as a name that no host
can have, is logged, and delays no other project.

The identity of `client` needs `list` and `watch` on `projects` or `projectcontrolplanes`; the identity of
`project_config` needs the permissions of the reconcilers in the projects.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from kplane.provider.access.config import ClusterConfig
from kplane.provider.client.client import Client
from kplane.provider.client.resources import DNS_LABEL, Resource
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet
from kplane.provider.errors import KubeconfigError
from kplane.provider.providers._support.condition import is_true
from kplane.provider.providers._support.object_backed import Object, ObjectBackedProvider

__all__ = ["PROJECTS", "PROJECT_CONTROL_PLANES", "MiloProvider"]

PROJECTS: Final = Resource("resourcemanager.miloapis.com/v1alpha1", "Project", "projects", namespaced=False)

PROJECT_CONTROL_PLANES: Final = Resource(
    "infrastructure.miloapis.com/v1alpha1", "ProjectControlPlane", "projectcontrolplanes", namespaced=False
)


class MiloProvider:
    """Engages the control plane of every ready project.

    `client` reaches the Milo API server with the projects, and belongs to the caller. `project_config` reaches their
    control planes; only its address is replaced. `label_selector` is the API's, such as `a=b,c!=d`.

    Raises KubeconfigError if `project_config` has no CA of its own and `internal_service_discovery` is on: its
    credentials would go to any server with a public certificate.
    """

    def __init__(
        self,
        client: Client,
        *,
        internal_service_discovery: bool = False,
        project_config: ClusterConfig | None = None,
        label_selector: str | None = None,
    ) -> None:
        self._internal = internal_service_discovery
        self._config = project_config if project_config is not None else client.config
        if self._internal:
            self._config_of("any")
        self._objects = ObjectBackedProvider(
            client,
            PROJECT_CONTROL_PLANES if self._internal else PROJECTS,
            plan=self._plan,
            what="project",
            label_selector=label_selector,
        )

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "milo"

    def has_synced(self) -> bool:
        """Tell whether the initial list of projects was read."""
        return self._objects.has_synced()

    async def run(self, fleet: Fleet) -> None:
        """Follow the projects until cancelled."""
        await self._objects.run(fleet)

    def _plan(self, project: Object) -> Cluster | None:
        if not is_true(project, "ControlPlaneReady" if self._internal else "Ready"):
            return None
        name = project["metadata"]["name"]
        return Cluster(name, config=self._config_of(name))

    def _config_of(self, name: str) -> ClusterConfig:
        if self._internal:
            # The text after a dot would become another namespace, and so another host.
            if not DNS_LABEL.fullmatch(f"project-{name}"):
                raise KubeconfigError(f"no namespace can be called 'project-{name}', so it has no API server")
            return self._config.with_server(f"https://milo-apiserver.project-{name}.svc.cluster.local:6443")
        host = urlsplit(self._config.server).netloc
        return self._config.with_server(f"https://{host}{PROJECTS.path(name)}/control-plane")
