"""Pod template of a component."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from kplane.workloads.component import DATA, FILES, SCRATCH, Component, File, Preparation, Probe
from kplane.workloads.errors import RuntimeFailure
from kplane.workloads.pods.settings import Image, PodSettings

__all__ = ["DATA_VOLUME", "FILES_MODE", "placed_content", "pod_spec", "topology_spread"]

DATA_VOLUME: Final = "data"
FILES_MODE: Final = 0o440
"""Readable by root and the pod's own group: the kubelet gives the files of a Secret to no other user."""

_USER: Final = 65532
_FILES_VOLUME: Final = "files"
_TEMPORARY_VOLUME: Final = "tmp"
_FILES_PATH: Final = "/etc/kplane"
_STORAGE_PATH: Final = "/var/lib/kplane"
_DATA_PATH: Final = f"{_STORAGE_PATH}/data"
"""A subdirectory of the volume: the volume may have a lost+found, and the program cannot change its permissions."""
_SCRATCH_VOLUME: Final = "scratch"
_SCRATCH_PATH: Final = "/var/run/kplane"
_DRAIN_SECONDS: Final = 5
"""Delay between the request to end a pod and SIGTERM, in seconds.

During the delay, clients may still use the pod's address.
"""
_PROBE_SECONDS: Final = 2
_STARTUP_PROBE_SECONDS: Final = 1
"""A short interval, because clients wait for API servers that wake."""
_STARTUP_FAILURES: Final = 600
"""A large limit, because opening a large database takes minutes."""
_LIVENESS_SECONDS: Final = 10
_LIVENESS_FAILURES: Final = 6
_EVENLY: Final = tuple(
    {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway"}
    for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
)


def pod_spec(component: Component, *, image: Image, settings: PodSettings, files_secret: str) -> dict[str, Any]:
    """Describe the pod. It satisfies the Pod Security Standard `restricted`."""
    data = [{"name": DATA_VOLUME, "mountPath": _STORAGE_PATH}] if component.data else []
    scratch = [{"name": _SCRATCH_VOLUME, "mountPath": _SCRATCH_PATH}] if component.scratch else []
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(component.grace_seconds) + _DRAIN_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": component.program,
                "image": image.reference,
                "imagePullPolicy": image.pull_policy,
                "command": [component.program],
                "args": [_placed(argument) for argument in component.args],
                "env": [{"name": name, "value": _placed(value)} for name, value in sorted(component.env.items())],
                "ports": [{"name": port.name, "containerPort": port.number} for port in component.ports],
                "lifecycle": {"preStop": {"sleep": {"seconds": _DRAIN_SECONDS}}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {
                        "drop": ["ALL"],
                        **({"add": list(image.capabilities)} if image.capabilities else {}),
                    },
                },
                # A failed pod then has the last lines of the log in its status, from which they are reported to people.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [
                    {"name": _FILES_VOLUME, "mountPath": _FILES_PATH, "readOnly": True},
                    {"name": _TEMPORARY_VOLUME, "mountPath": "/tmp"},  # noqa: S108 - in the container
                    *data,
                    *scratch,
                ],
                **_resources(component),
                **_probes(component),
            }
        ],
        "volumes": [
            {"name": _FILES_VOLUME, "secret": {"secretName": files_secret, "defaultMode": FILES_MODE}},
            {"name": _TEMPORARY_VOLUME, "emptyDir": {}},
            *({"name": mounted["name"], "emptyDir": {"medium": "Memory"}} for mounted in scratch),
        ],
    }
    if component.service_account is not None:
        spec |= {"serviceAccountName": component.service_account, "automountServiceAccountToken": True}
    if component.prepare is not None:
        spec["initContainers"] = [
            _preparing(component, spec["containers"][0], prepare=component.prepare, settings=settings)
        ]
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    return spec | _scheduling(component)


_PREPARE: Final = """\
[ -e "$0" ] && exit 0
new=$1 made=$2; shift 2
rm -rf "$new"
"$@"
mkdir -p -m 0700 "${0%/*}"
mv "$new/$made" "$0"
rm -rf "$new"
"""
"""Shell script of the preparation. Its result is complete or absent, even if the script ends at any point."""


def _preparing(
    component: Component, container: Mapping[str, Any], *, prepare: Preparation, settings: PodSettings
) -> dict[str, Any]:
    """Describe the container that makes the data of the component, if they do not exist."""
    image = settings.images.get(prepare.program)
    if image is None:
        raise RuntimeFailure(f"Component {component.name}: no image for {prepare.program} is given.")
    new = f"{_DATA_PATH}.new"
    args = [_placed(argument.replace(DATA, new)) for argument in prepare.args]
    made = f"{_DATA_PATH}/{prepare.creates}"
    return {
        "name": "prepare",
        "image": image.reference,
        "imagePullPolicy": image.pull_policy,
        "command": ["/bin/sh", "-euc", _PREPARE, made, new, prepare.creates, prepare.program, *args],
        **{name: container[name] for name in ("securityContext", "terminationMessagePolicy", "volumeMounts")},
        **_resources(component),
    }


def topology_spread(component: Component, *, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Describe the spread of a component's pods, selected by `labels`: the component's constraints, or evenly."""
    configured = component.scheduling.topology_spread if component.scheduling is not None else None
    constraints = _EVENLY if configured is None else configured
    return [{**constraint, "labelSelector": {"matchLabels": dict(labels)}} for constraint in constraints]


def _scheduling(component: Component) -> dict[str, Any]:
    scheduling = component.scheduling
    if scheduling is None:
        return {}
    return {
        **({"nodeSelector": dict(scheduling.node_selector)} if scheduling.node_selector else {}),
        **(
            {"tolerations": [dict(toleration) for toleration in scheduling.tolerations]}
            if scheduling.tolerations
            else {}
        ),
        **({"affinity": dict(scheduling.affinity)} if scheduling.affinity else {}),
        **({"priorityClassName": scheduling.priority_class} if scheduling.priority_class is not None else {}),
    }


def placed_content(file: File) -> bytes:
    """Return the content of the file in the pod."""
    return file.content.replace(FILES.encode(), _FILES_PATH.encode()) if file.names_files else file.content


def _placed(text: str) -> str:
    # Kubernetes replaces "$(NAME)" with the value of an environment variable, unless it is written "$$(NAME)".
    placed = text.replace(FILES, _FILES_PATH).replace(DATA, _DATA_PATH).replace(SCRATCH, _SCRATCH_PATH)
    return placed.replace("$(", "$$(")


def _resources(component: Component) -> Mapping[str, Any]:
    resources = component.resources
    if resources is None:
        return {}
    return {
        "resources": {
            "requests": {"cpu": resources.cpu_request, "memory": resources.memory_request},
            "limits": {
                **({"cpu": resources.cpu_limit} if resources.cpu_limit is not None else {}),
                "memory": resources.memory_limit,
            },
        }
    }


def _probes(component: Component) -> Mapping[str, Any]:
    probe = component.readiness
    if probe is None:
        return {}
    timeout = max(1, round(probe.timeout_seconds))
    probes: dict[str, Any] = {
        "readinessProbe": {
            **_asking(probe, probe.path),
            "periodSeconds": _PROBE_SECONDS,
            "timeoutSeconds": timeout,
            "failureThreshold": probe.failure_threshold,
        }
    }
    if component.liveness_path is not None:
        alive = {**_asking(probe, component.liveness_path), "timeoutSeconds": timeout}
        probes["startupProbe"] = {
            **alive,
            "periodSeconds": _STARTUP_PROBE_SECONDS,
            "failureThreshold": _STARTUP_FAILURES,
        }
        probes["livenessProbe"] = {
            **alive,
            "periodSeconds": _LIVENESS_SECONDS,
            "failureThreshold": _LIVENESS_FAILURES,
        }
    return probes


def _asking(probe: Probe, path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": probe.port, "scheme": "HTTP" if probe.ca is None else "HTTPS"}}
