"""What a program needs in order to run, said once for every runtime."""

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
"""Stands in arguments and in values of `Component.env` for the private directory that holds `Component.files`."""

DATA = "$(DATA)"
"""Stands in arguments and in values of `Component.env` for the directory that survives restarts (`Component.data`)."""

SCRATCH = "$(SCRATCH)"
"""Stands there for a private directory that may be empty at each start (`Component.scratch`): in memory, as pods."""


class RestartPolicy(enum.StrEnum):
    """What follows when the process ends by itself. Kubernetes' words."""

    ALWAYS = "Always"
    NEVER = "Never"


class Lifetime(enum.StrEnum):
    """What becomes of the component when the process that runs the runtime dies."""

    BOUND = "Bound"
    """It is killed with its supervisor (Linux: PR_SET_PDEATHSIG)."""

    INDEPENDENT = "Independent"
    """It continues, and the next supervisor adopts it."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that the program reads, delivered with mode 0600 in a directory of mode 0700."""

    content: bytes = field(repr=False)
    reloaded: bool = False
    """The program re-reads the file by itself, so that a change replaces it atomically and restarts nothing."""
    names_files: bool = False
    """`FILES` in the content is replaced by the directory, as in arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """What a former description must have in common with a new one to run on in its place, if the new one fails.

    A new one fails if its program ends by itself, or hangs, before it was ever ready: an argument is misspelled, or a
    file cannot be parsed. Whatever decides which data are served, and who is let in, belongs here.
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
    """A command that makes the data of a component. It runs before the first start, and before a start without them."""

    program: str
    args: tuple[str, ...]
    """`DATA` in them is a directory that does not exist. The command makes it."""
    creates: str
    """What the command makes in there. The data get that, and as long as they have it, the command does not run."""


@dataclass(frozen=True, slots=True)
class Probe:
    """An HTTP GET that answers 200 when the component is ready. Plain HTTP where `ca` is None."""

    port: str
    """Name of the port."""
    path: str
    ca: str | None = None
    """Name of the file (in `Component.files`) with the CA that signed the serving certificate."""
    interval_seconds: float = 0.2
    """Between probes until ready; afterwards the runtime probes at a slower pace."""
    timeout_seconds: float = 5.0
    failure_threshold: int = 3
    """So many failures in a row make a ready component not ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a component connects to: a TCP port, of a component beside it, of a namespace, of a network, or else of any
    address that is not link-local."""

    port: int
    component: str | None = None
    namespace: str | None = None
    network: str | None = None
    """A CIDR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a component gets of a machine that it shares, where the runtime can hold it to that: pods.

    Words and quantities are those of Kubernetes.
    """

    cpu_request: str
    memory_request: str
    memory_limit: str
    """A component that takes more is ended and started again; the others are not touched."""
    cpu_limit: str | None = None
    """None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Which nodes a component runs on, where the runtime has several: pods. Words and shapes are of Kubernetes."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    priority_class: str | None = None
    topology_spread: Sequence[Mapping[str, Any]] | None = None
    """Constraints without `labelSelector`, because they are about the component's own pods. None: evenly over nodes and
    zones where that can be.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The volume for the data of a component, where the runtime has volumes: pods. Words are of Kubernetes."""

    size: str | None = None
    """None: that of the runtime's settings."""
    storage_class: str | None = None
    """None: that of the runtime's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One long-running program and all that it needs. Equal descriptions need no action."""

    name: str
    """Unique in its runtime; a DNS-1123 label."""
    program: str
    """The executable's name, "kube-apiserver", which each runtime finds where its programs are; or an absolute path."""
    args: tuple[str, ...]
    """Arguments. `FILES` and `DATA` in them are replaced by directories. Never a secret: arguments are public."""
    version: str | None = None
    """Of the program, such as "1.36.3"; None: the one that the runtime has. See `Runtime.lacks`."""
    files: Mapping[str, File] = field(default_factory=dict)
    """By file name."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The whole environment besides PATH and HOME. Never a secret."""
    ports: tuple[Port, ...] = ()
    data: bool = False
    """Whether the program keeps data (`DATA` is then a directory that only `Runtime.delete` removes)."""
    storage: Storage = field(default_factory=Storage)
    """The volume for that, when it is made; a change does nothing to one that is there."""
    prepare: Preparation | None = None
    """None: the program makes its data itself. A change restarts no process."""
    scratch: bool = False
    """Whether the program writes files that it can do without after a restart, secret ones among them (`SCRATCH`)."""
    single: bool = False
    """One of it runs at a time, also where its node is lost: the next one starts when the last one is known to have
    ended. Processes, and whatever keeps data, are so anyway.
    """
    service_account: str | None = None
    """Whom of the management cluster it is, as a pod: a ServiceAccount beside it. None: nobody."""
    readiness: Probe | None = None
    """None: ready as soon as it runs."""
    liveness_path: str | None = None
    """On the port of `readiness`. A component that does not answer 200 there for a minute hangs, and is restarted."""
    resources: Resources | None = None
    scheduling: Scheduling | None = None
    """None: any node, as for other pods."""
    scheduling_held: bool = False
    """Whether pods that exist keep the scheduling they have, whatever `scheduling` says: it counts for a new component.
    """
    open_files: int | None = None
    """So many files and connections it may have open at once, where the runtime can hold it to that: processes."""
    only_logs: bool = False
    """Whether it writes nothing at length but its log, which the kernel can bound then: processes of `Lifetime.BOUND`.

    Their files are cut off at four times what the runtime lets a log have; what does not fit is lost.
    """
    reads: tuple[str, ...] | None = None
    """Paths that it may read besides its own files and those of the machine: programs, libraries, /etc, /proc, /sys.

    The kernel then refuses it all else, such as the files of other components: processes of `Lifetime.BOUND`, if the
    kernel has Landlock (`landlock_version`). None: whatever its user may read.
    """
    reached_by: tuple[str, ...] | None = None
    """Names of the components that may connect to it, where the runtime can keep others out: pods. None: anybody."""
    operated: bool = False
    """Whether the owner of the runtime connects to it as well: pods let in `PodSettings.operator` besides."""
    peer_port: str | None = None
    """Name of a port that `peers` alone connect to, where the runtime can keep others out: pods."""
    peers: tuple[str, ...] = ()
    """Names of the components that hold the same data."""
    metrics_port: str | None = None
    """Name of a port that serves metrics and health only: pods let in nobody but `PodSettings.metrics_from` there."""
    reaches: tuple[Reach, ...] | None = ()
    """What it connects to besides DNS, and to nothing else where the runtime can keep it. None: to whatever it will."""
    restart: RestartPolicy = RestartPolicy.ALWAYS
    fallback: Fallback | None = None
    """None: a description that fails is tried until it is ready. It needs `readiness`. Pods without data need none:
    their Deployment ends no pod until the next one is ready.
    """
    check: tuple[str, ...] = ()
    """Arguments that make the program only judge those that follow: it ends with a code above 0 if it refuses one.

    With a `fallback`, processes ask it before they end one that serves. Empty: the program cannot be asked.
    """
    lifetime: Lifetime = Lifetime.INDEPENDENT
    grace_seconds: float = 30.0
    """Between the request to stop and the kill."""
