"""Description of a program and its requirements, the same for every runtime."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "DATA",
    "FILES",
    "SCRATCH",
    "Component",
    "Fallback",
    "File",
    "Lifetime",
    "Port",
    "Preparation",
    "Probe",
    "Reach",
    "Resources",
    "RestartPolicy",
    "Scheduling",
    "Storage",
]

FILES = "$(FILES)"
"""Placeholder in arguments and values of `Component.env`: the private directory that holds `Component.files`."""

DATA = "$(DATA)"
"""Placeholder in arguments and values of `Component.env`: the directory that survives restarts (`Component.data`)."""

SCRATCH = "$(SCRATCH)"
"""Placeholder in arguments and values of `Component.env`: a private directory for `Component.scratch`.

The directory may be empty at each start. Pods have it in memory.
"""


class RestartPolicy(enum.StrEnum):
    """Reaction to a process that ends by itself, in Kubernetes' words."""

    ALWAYS = "Always"
    NEVER = "Never"


class Lifetime(enum.StrEnum):
    """Lifetime of the component in relation to the process that runs the runtime."""

    BOUND = "Bound"
    """The kernel kills the component when its supervisor dies (Linux: PR_SET_PDEATHSIG)."""

    INDEPENDENT = "Independent"
    """The component outlives its supervisor, and the next supervisor adopts it."""


@dataclass(frozen=True, slots=True)
class File:
    """A file for the program, delivered with mode 0600 in a directory of mode 0700."""

    content: bytes = field(repr=False)
    reloaded: bool = False
    """Whether the program reads the file again by itself.

    A change then replaces the file atomically, without a restart.
    """
    names_files: bool = False
    """Whether `FILES` in the content is replaced by the directory, as in arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Parts that a former description must share with a new description, to replace the new description if it fails.

    A description fails if its program ends by itself, or hangs, before it was ever ready. For example, an argument is
    misspelled, or a file cannot be parsed. List here all arguments and files that determine which data are served and
    who has access.
    """

    arguments: tuple[str, ...] = ()
    """Whole arguments, without placeholders."""
    files: tuple[str, ...] = ()
    """Names of files whose content must be equal."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port that the program listens on; the number comes from `Runtime.reserve`."""

    number: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A command that makes the data of a component before a start, if the data are missing."""

    program: str
    args: tuple[str, ...]
    """Arguments. `DATA` in them is a directory that does not exist yet; the command creates it."""
    creates: str
    """Name of the file or directory that the command creates in `DATA`.

    The runtime moves it into the data of the component. While it exists there, the command does not run.
    """


@dataclass(frozen=True, slots=True)
class Probe:
    """Readiness probe by HTTP GET: status 200 means ready. The probe uses plain HTTP if `ca` is None."""

    port: str
    """Name of the port."""
    path: str
    ca: str | None = None
    """Name of the file (in `Component.files`) with the CA that signed the serving certificate."""
    interval_seconds: float = 0.2
    """Interval between probes until the component is ready; afterwards the runtime probes less often."""
    timeout_seconds: float = 5.0
    failure_threshold: int = 3
    """Number of consecutive failures after which a ready component counts as not ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A TCP port that a component connects to.

    The port is on a component beside it, in a namespace or in a network. Without any of the three, the port is on any
    address that is not link-local.
    """

    port: int
    component: str | None = None
    namespace: str | None = None
    network: str | None = None
    """A CIDR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Requests and limits for a component on a shared machine, in Kubernetes' words and quantities.

    Pods have both. Processes have neither.
    """

    cpu_request: str
    memory_request: str
    memory_limit: str
    """The kernel ends a component that exceeds the limit, and it starts again; other components are not affected."""
    cpu_limit: str | None = None
    """None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Nodes that a component may run on, in Kubernetes' words and shapes. Applies to pods."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    priority_class: str | None = None
    topology_spread: Sequence[Mapping[str, Any]] | None = None
    """Constraints without `labelSelector`, which the runtime sets to the component's own pods.

    None: evenly over nodes and zones, if possible.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The volume for the data of a component, in Kubernetes' words. Applies to pods."""

    size: str | None = None
    """None: the size in the runtime's settings."""
    storage_class: str | None = None
    """None: the class in the runtime's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A long-running program and its requirements. Applying an equal description again changes no state."""

    name: str
    """Unique in its runtime; a DNS-1123 label."""
    program: str
    """Name of the executable, such as "kube-apiserver", or an absolute path.

    Each runtime looks for the name among its own programs.
    """
    args: tuple[str, ...]
    """Arguments, with `FILES`, `DATA` and `SCRATCH` replaced by directories.

    Arguments must not contain secrets, because they are public.
    """
    version: str | None = None
    """Version of the program, such as "1.36.3"; None: the runtime's version. See `Runtime.lacks`."""
    files: Mapping[str, File] = field(default_factory=dict)
    """Files by name."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The whole environment besides PATH and HOME, without secrets."""
    ports: tuple[Port, ...] = ()
    data: bool = False
    """Whether the program keeps data. `DATA` is then a directory that only `Runtime.delete` removes."""
    storage: Storage = field(default_factory=Storage)
    """The volume for the data.

    The settings count only when the volume is created; a change does not affect an existing volume.
    """
    prepare: Preparation | None = None
    """Command that makes the data; None: the program makes its data itself. A change does not restart the process."""
    scratch: bool = False
    """Whether the program writes files that it does not need after a restart (`SCRATCH`).

    The files may contain secrets.
    """
    single: bool = False
    """Whether at most one instance runs at a time, even if its node is lost.

    The next pod starts once the former pod is known to have ended. Processes, and components with data, always run so.
    """
    service_account: str | None = None
    """Name of the ServiceAccount in the management cluster that the pod uses, in its own namespace.

    None: the pod has no token of the management cluster.
    """
    readiness: Probe | None = None
    """Readiness probe; None: the component is ready as soon as it runs."""
    liveness_path: str | None = None
    """Path on the port of `readiness`. A component without an answer 200 there for a minute hangs, and is restarted."""
    resources: Resources | None = None
    scheduling: Scheduling | None = None
    """None: any node, as for other pods."""
    scheduling_held: bool = False
    """Whether existing pods keep their present scheduling. `scheduling` then counts only for a new component."""
    open_files: int | None = None
    """Maximum number of files and connections that the component may have open at once. Applies to processes."""
    only_logs: bool = False
    """Whether the log is the only large file that the program writes. Applies to processes of `Lifetime.BOUND`.

    The kernel then limits each of their files to four times the runtime's limit of a log. Further output is lost.
    """
    reads: tuple[str, ...] | None = None
    """Paths that the component may read besides its own files and the machine's files.

    The machine's files are programs, libraries, /etc, /proc and /sys.
    The kernel refuses access to other files, such as the files of other components. Applies to processes of
    `Lifetime.BOUND`, if the kernel has Landlock (`landlock_version`). None: all files that its user may read.
    """
    reached_by: tuple[str, ...] | None = None
    """Names of the components that may connect to the component. Applies to pods. None: any client."""
    operated: bool = False
    """Whether the owner of the runtime connects to the component as well. Pods then admit `PodSettings.operator`."""
    peer_port: str | None = None
    """Name of a port that only `peers` may connect to. Applies to pods."""
    peers: tuple[str, ...] = ()
    """Names of the components that hold the same data."""
    metrics_port: str | None = None
    """Name of a port that serves only metrics and health. Pods admit only `PodSettings.metrics_from` there."""
    reaches: tuple[Reach, ...] | None = ()
    """Destinations that the component may connect to besides DNS. Applies to pods. None: any destination."""
    restart: RestartPolicy = RestartPolicy.ALWAYS
    fallback: Fallback | None = None
    """Condition for a return to the former description if the new description fails; requires `readiness`.

    None: a failing description is tried until it is ready. Pods without data need no fallback: their Deployment keeps
    each former pod until the next pod is ready.
    """
    check: tuple[str, ...] = ()
    """Arguments that make the program only validate the arguments after them.

    The exit code is above 0 if the program refuses them. With a `fallback`, the process runtime validates before it
    ends a serving process. Empty: the program cannot validate.
    """
    lifetime: Lifetime = Lifetime.INDEPENDENT
    grace_seconds: float = 30.0
    """Time between the request to stop and the kill."""
