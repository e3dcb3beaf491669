"""Control planes from Python: create them, wait for them, use them, move and delete them.

async with ControlPlanes.connect() as control_planes:
    await control_planes.create("acme", wait=True)
    kubeconfig = await control_planes.kubeconfig("acme")
"""

from __future__ import annotations

from kplane.client.control_planes import ControlPlanes
from kplane.client.errors import ClientError, NoControlPlane, NoKubeconfig, NotSettled
from kplane.client.events import KubernetesEvent
from kplane.client.settled import Settled, arrived, asleep, awake, moved, ready
from kplane.client.watching import Change

__all__ = [
    "Change",
    "ClientError",
    "ControlPlanes",
    "KubernetesEvent",
    "NoControlPlane",
    "NoKubeconfig",
    "NotSettled",
    "Settled",
    "arrived",
    "asleep",
    "awake",
    "moved",
    "ready",
]
