"""Connects to addresses from pods, and has pods that can be connected to: what NetworkPolicies drop is seen."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from e2e.installation import NAMESPACE
from e2e.kubectl import Kubectl, Object
from e2e.waiting import eventually

__all__ = ["PORTS", "Bystanders", "pod_of", "reached_beside", "reached_from"]

PORTS: Final = (53, 443, 2379, 2380, 6443, 10250)
"""Where bystanders listen: whatever has such a port elsewhere, a tenant must not reach it."""

_CLOSED_SECONDS: Final = 60.0
"""Within these a network plugin that enforces policies enforces a new one."""
_LISTENS: Final = (
    "import selectors, socket, sys",
    "selector = selectors.DefaultSelector()",
    "for port in map(int, sys.argv[1:]):",
    "    selector.register(socket.create_server(('', port), backlog=64), selectors.EVENT_READ, 'tcp')",
    "names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "names.bind(('', 53))",
    "selector.register(names, selectors.EVENT_READ, 'udp')",
    "while True:",
    "    for key, _ in selector.select():",
    "        if key.data == 'tcp':",
    "            key.fileobj.accept()[0].close()",
    "        else:",
    "            asked, by = key.fileobj.recvfrom(512)",
    "            key.fileobj.sendto(asked, by)",
)
# Of names it asks for the root's servers: a DNS server answers something, be it a refusal.
_PROBE: Final = (
    "import concurrent.futures, json, socket, sys",
    "QUESTION = bytes.fromhex('002a01000001000000000000' '00' '0002' '0001')",
    "def tried(target):",
    "    protocol, host, port = target.split('/')",
    "    kind = socket.SOCK_STREAM if protocol == 'tcp' else socket.SOCK_DGRAM",
    "    with socket.socket(socket.AF_INET, kind) as opened:",
    "        opened.settimeout(5)",
    "        try:",
    "            opened.connect((host, int(port)))",
    "            if protocol == 'udp':",
    "                opened.send(QUESTION)",
    "                opened.recv(512)",
    "        except OSError as error:",
    "            return str(error) or type(error).__name__",
    "    return 'connected'",
    "targets = json.loads(sys.argv[1])",
    "with concurrent.futures.ThreadPoolExecutor(16) as pool:",
    "    print(json.dumps(dict(zip(targets, pool.map(tried, targets.values())))))",
)


def _connected(found: Mapping[str, str]) -> set[str]:
    """Return the names of the targets that answered."""
    return {name for name, result in found.items() if result == "connected"}


def reached_from(kubectl: Kubectl, targets: Mapping[str, str], *, of: str, namespace: str) -> set[str]:
    """Connect to each target, such as `tcp/10.0.0.1/443`, from a pod that has Python. Return who answered."""
    printed = kubectl("exec", of, "-n", namespace, "--", "python3", "-c", "\n".join(_PROBE), json.dumps(targets))
    return _connected(json.loads(printed))


def reached_beside(kubectl: Kubectl, targets: Mapping[str, str], *, pod: Object) -> set[str]:
    """Connect to each target from the network of a pod, whose image has no Python. Return who answered."""
    container = f"probe-{secrets.token_hex(3)}"
    where = (pod["metadata"]["name"], "-n", pod["metadata"]["namespace"])
    kubectl(
        *("debug", *where, f"--container={container}", f"--image={_image(kubectl)}"),
        *("--image-pull-policy=IfNotPresent", "--profile=restricted"),
        *("--", "python3", "-c", "\n".join(_PROBE), json.dumps(targets)),
    )
    printed = eventually("the probe's answer", lambda: kubectl("logs", *where, f"--container={container}").strip())
    return _connected(json.loads(printed))


def pod_of(kubectl: Kubectl, component: str, *, namespace: str) -> Object:
    """Return the running pod of a component."""
    found = kubectl.items("pods", "-n", namespace, "-l", f"app.kubernetes.io/component={component}")
    running = [
        pod for pod in found if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    assert running, f"failed to find a pod of {component} in {namespace}"
    return running[0]


@dataclass(frozen=True, slots=True)
class Bystanders:
    """Two pods that have nothing to do with kplane, in a namespace of their own. They listen on all of `PORTS`.

    A NetworkPolicy closes one of them. No policy bounds the other. Who does not reach it is kept back by a policy of
    his own.
    """

    kubectl: Kubectl
    namespace: str

    def create(self) -> None:
        """Create both, and wait until they listen."""
        self.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        self.kubectl.apply(*(self._pod(name) for name in ("open", "closed")))
        self.kubectl("wait", "--for=condition=Ready", "pods", "--all", "-n", self.namespace, "--timeout=120s")

    def delete(self) -> None:
        """Delete both with their namespace."""
        self.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--timeout=120s")

    @property
    def address(self) -> str:
        """The address of the one that is open."""
        return self._address("open")

    def targets(self) -> dict[str, str]:
        """Return everything that may be reached of the one that is open."""
        tcp = {f"bystander:{port}": f"tcp/{self.address}/{port}" for port in PORTS}
        return {**tcp, "DNS elsewhere": f"udp/{self.address}/53"}

    def reach(self, targets: Mapping[str, str]) -> set[str]:
        """Connect to each target from the one that is open. Return who answered."""
        return reached_from(self.kubectl, targets, of="open", namespace=self.namespace)

    def policies_are_enforced(self) -> bool:
        """Close the closed one, and tell whether it is: the other reaches it before, and not after."""
        target = {"closed": f"tcp/{self._address('closed')}/443"}
        eventually("an answer of the pod before it is closed", lambda: self.reach(target))
        self.kubectl.apply(
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {"name": "closed", "namespace": self.namespace},
                "spec": {"podSelector": {"matchLabels": {"name": "closed"}}, "policyTypes": ["Ingress"]},
            }
        )
        with contextlib.suppress(AssertionError):
            eventually("the policy", lambda: not self.reach(target), timeout_seconds=_CLOSED_SECONDS)
        return not self.reach(target)

    def _address(self, name: str) -> str:
        return str(self.kubectl.get("pod", name, "-n", self.namespace)["status"]["podIP"])

    def _pod(self, name: str) -> Object:
        command = ["python3", "-c", "\n".join(_LISTENS), *map(str, PORTS)]
        listening = {"tcpSocket": {"port": PORTS[-1]}, "periodSeconds": 1}
        container = {
            "name": "listener",
            "image": _image(self.kubectl),
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "readinessProbe": listening,
        }
        any_port = {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": {"name": name}},
            "spec": {
                "containers": [container],
                "securityContext": any_port,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
            },
        }


def _image(kubectl: Kubectl) -> str:
    """Return the image of the operator, which has Python and is on the nodes."""
    path = "-o=jsonpath={.spec.template.spec.containers[0].image}"
    return kubectl("get", "deployment", "kplane-operator", "-n", NAMESPACE, path)
