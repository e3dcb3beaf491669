"""Runs a machine beside the nodes of a kind cluster. The machine joins a tenant's control plane as a node."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from e2e.kubectl import Kubectl
from e2e.nodes import Nodes, docker
from e2e.tenant import Tenant
from e2e.waiting import eventually

__all__ = ["Machine", "running_machine"]

_CLUSTER: Final = "io.x-k8s.kind.cluster"
"""Label of each container of a kind cluster, with the cluster's name. `kind load` and `kind delete cluster` use it."""
_PODS: Final = "10.250.0.0/24"
_KUBELET: Final = {
    # kind configures kubelets in the same way: they run in containers, and share the disk and cgroups of this machine.
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cgroupRoot": "/kubelet",
    "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
    "failCgroupV1": False,
    "failSwapOn": False,
    "imageGCHighThresholdPercent": 100,
}
_JOIN_SECONDS: Final = 240.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A container of kind's node image, which has kubeadm, kubelet and containerd."""

    name: str
    address: str

    def __call__(self, *command: str, stdin: str | None = None, timeout_seconds: float = 120.0) -> str:
        """Run a command in the container, and return its output."""
        return docker("exec", "--interactive", self.name, *command, stdin=stdin, timeout_seconds=timeout_seconds)

    def write(self, file: str, content: Any) -> None:
        """Write a file in the container: a string as it is, other content as JSON."""
        text = content if isinstance(content, str) else json.dumps(content)
        self("sh", "-c", 'mkdir -p "${1%/*}" && umask 077 && cat > "$1"', "sh", file, stdin=text)

    def join(self, tenant: Tenant) -> None:
        """Join the tenant's control plane as docs/how-to/join-nodes.md describes, and wait until the node is ready."""
        file, token = _discovery(tenant.kubectl), _token(tenant.kubectl)
        self.write("/join/discovery.conf", file)
        self.write("/join/patches/kubeletconfiguration+strategic.json", _KUBELET)
        command = ["kubeadm", "join", "--discovery-file=/join/discovery.conf", f"--tls-bootstrap-token={token}"]
        # A container fails the preflight checks of kubeadm. kind ignores them, too.
        command += ["--patches=/join/patches", "--ignore-preflight-errors=all"]
        self(*command, timeout_seconds=_JOIN_SECONDS)
        # kubeadm returns when the kubelet has its certificate. At that time the Node may not exist yet.
        eventually("the node", lambda: tenant.kubectl.find("node", self.name))
        tenant.kubectl("wait", f"node/{self.name}", "--for=condition=Ready", "--timeout=120s")


def _token(kubectl: Kubectl) -> str:
    label = "controlplane.kplane.dev/installed-by=kubeadm-join"
    newest = ("--sort-by=.metadata.creationTimestamp", "-o=go-template={{range .items}}{{.metadata.name}} {{end}}")
    secret = kubectl("get", "secrets", "-n", "kube-system", "-l", label, *newest).split()[-1]
    parts = '-o=go-template={{index .data "token-id" | base64decode}}.{{index .data "token-secret" | base64decode}}'
    return kubectl("get", "secret", secret, "-n", "kube-system", parts)


def _discovery(kubectl: Kubectl) -> str:
    return kubectl("get", "configmap", "cluster-info", "-n", "kube-public", "-o=jsonpath={.data.kubeconfig}")


@contextlib.contextmanager
def running_machine(nodes: Nodes, *, name: str) -> Iterator[Machine]:
    """Run a machine in the network of the nodes. Its label is of their cluster: `kind delete cluster` deletes it."""
    (node,) = json.loads(docker("inspect", nodes.names[0]))
    labels = node["Config"]["Labels"]
    (network,) = node["NetworkSettings"]["Networks"]
    options = [f"--name={name}", f"--hostname={name}", f"--net={network}", "--restart=no"]
    options += [f"--label={_CLUSTER}={labels[_CLUSTER]}", "--label=io.x-k8s.kind.role=worker"]
    # kind runs its nodes with these options.
    options += ["--privileged", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"]
    options += ["--init=false", "--cgroupns=private", "--tmpfs=/tmp", "--tmpfs=/run", "--volume=/var"]
    options += ["--volume=/lib/modules:/lib/modules:ro"]
    docker("run", "--detach", "--tty", *options, node["Config"]["Image"])
    try:
        (container,) = json.loads(docker("inspect", name))
        machine = Machine(name, container["NetworkSettings"]["Networks"][network]["IPAddress"])
        eventually("containerd", lambda: _answers(machine), timeout_seconds=60.0)
        machine.write("/etc/cni/net.d/10-e2e.conflist", _network())
        yield machine
    finally:
        docker("rm", "--force", "--volumes", name)


def _answers(machine: Machine) -> bool:
    with contextlib.suppress(AssertionError):
        machine("crictl", "version")
        return True
    return False


def _network() -> dict[str, Any]:
    ranges = {"ranges": [[{"subnet": _PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    plugin = {"type": "ptp", "ipMasq": True, "ipam": {"type": "host-local", **ranges}}
    return {"cniVersion": "0.3.1", "name": "e2e", "plugins": [plugin]}
