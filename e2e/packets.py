"""Connects from pods to addresses, and runs pods that accept connections, to show the effect of NetworkPolicies."""

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
"""Ports on which bystanders listen: ports of DNS, HTTPS, etcd, API servers and kubelets, closed to tenants."""

_CLOSED_SECONDS: Final = 60.0
"""Time within which a network plugin that enforces policies applies a new policy."""
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
# The probe by UDP asks for the name servers of the root zone. Each DNS server answers, even if it refuses the query.
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
    """Connect to each target, such as `tcp/10.0.0.1/443`, from a pod with Python. Returns the names that answered."""
    printed = kubectl("exec", of, "-n", namespace, "--", "python3", "-c", "\n".join(_PROBE), json.dumps(targets))
    return _connected(json.loads(printed))


def reached_beside(kubectl: Kubectl, targets: Mapping[str, str], *, pod: Object) -> set[str]:
    """Connect to each target from the network of a pod whose image has no Python. Returns the names that answered.

    An ephemeral container with the operator's image connects.
    """
    container = f"probe-{secrets.token_hex(3)}"
    location = (pod["metadata"]["name"], "-n", pod["metadata"]["namespace"])
    kubectl(
        *("debug", *location, f"--container={container}", f"--image={_image(kubectl)}"),
        *("--image-pull-policy=IfNotPresent", "--profile=restricted"),
        *("--", "python3", "-c", "\n".join(_PROBE), json.dumps(targets)),
    )
    printed = eventually("the probe's answer", lambda: kubectl("logs", *location, f"--container={container}").strip())
    return _connected(json.loads(printed))


def pod_of(kubectl: Kubectl, component: str, *, namespace: str) -> Object:
    """Return a running pod of a component. Raises AssertionError if the component has none."""
    pods = kubectl.items("pods", "-n", namespace, "-l", f"app.kubernetes.io/component={component}")
    running = [
        pod for pod in pods if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    assert running, f"failed to find a pod of {component} in {namespace}"
    return running[0]


@dataclass(frozen=True, slots=True)
class Bystanders:
    """Two pods without relation to kplane, `open` and `closed`, in a separate namespace. Both listen on all `PORTS`.

    A NetworkPolicy denies all traffic to pod `closed`. No policy restricts pod `open`. So if a pod does not reach pod
    `open`, its own NetworkPolicy drops the packets.
    """

    kubectl: Kubectl
    namespace: str

    def create(self) -> None:
        """Create both pods, and wait until they listen."""
        self.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        self.kubectl.apply(*(self._pod(name) for name in ("open", "closed")))
        self.kubectl("wait", "--for=condition=Ready", "pods", "--all", "-n", self.namespace, "--timeout=120s")

    def delete(self) -> None:
        """Delete both pods with their namespace."""
        self.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--timeout=120s")

    @property
    def address(self) -> str:
        """IP address of pod `open`."""
        return self._address("open")

    def targets(self) -> dict[str, str]:
        """Return the targets of all ports of pod `open`, by name."""
        tcp = {f"bystander:{port}": f"tcp/{self.address}/{port}" for port in PORTS}
        return {**tcp, "DNS elsewhere": f"udp/{self.address}/53"}

    def reach(self, targets: Mapping[str, str]) -> set[str]:
        """Connect to each target from pod `open`. Returns the names that answered."""
        return reached_from(self.kubectl, targets, of="open", namespace=self.namespace)

    def policies_are_enforced(self) -> bool:
        """Create the NetworkPolicy of pod `closed`, and return whether the cluster enforces it.

        Raises AssertionError if pod `open` does not reach pod `closed` before the policy exists.
        """
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
        probe = {"tcpSocket": {"port": PORTS[-1]}, "periodSeconds": 1}
        container = {
            "name": "listener",
            "image": _image(self.kubectl),
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "readinessProbe": probe,
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
