"""Checks an installation for `helm test`: programs are ready, kinds are served, and this node has inotify instances."""

import ctypes
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

KINDS = {
    "controlplaneclasses",
    "controlplaneendpoints",
    "controlplaneregistrations",
    "controlplanes",
    "controlplanesnapshots",
}
CREDENTIALS = os.environ["CREDENTIALS"]
API_SERVER_INSTANCES = 7
INSTANCES = "fs.inotify.max_user_instances"


def read(url: str, *, token: str = "") -> bytes:
    """Return the content of a URL. Raises OSError with what an error answer says."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    context = ssl.create_default_context(cafile=f"{CREDENTIALS}/ca.crt") if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(request, timeout=5.0, context=context) as answer:
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as error:
        raise OSError(f"{error.code} {error.reason}: {error.read(1000).decode(errors='replace').strip()}") from None


def check_kinds() -> None:
    """Ask the API server for the kinds of the group. Each identity may do that. Raises OSError if one is absent."""
    with open(f"{CREDENTIALS}/token", encoding="ascii") as file:
        token = file.read().strip()
    answer = json.loads(read(f"{os.environ['API_SERVER']}/apis/controlplane.kplane.dev/v1alpha1", token=token))
    absent = KINDS - {resource["name"] for resource in answer["resources"]}
    if absent:
        raise OSError(f"the API server does not serve {', '.join(sorted(absent))}")


def check_inotify() -> None:
    """Make as many inotify instances as one more API server takes: pods of kplane have one user on a node."""
    libc = ctypes.CDLL(None)
    made = [libc.inotify_init1(os.O_CLOEXEC) for _ in range(API_SERVER_INSTANCES)]
    free = [descriptor for descriptor in made if descriptor >= 0]
    for descriptor in free:
        os.close(descriptor)
    if len(free) < API_SERVER_INSTANCES:
        with open("/proc/sys/" + INSTANCES.replace(".", "/"), encoding="ascii") as file:
            limit = int(file.read())
        raise OSError(
            f"user {os.geteuid()} has {limit - len(free)} of {limit} inotify instances in use ({INSTANCES}), and an API"
            f" server takes {API_SERVER_INSTANCES}; raise the limit on node {os.environ.get('NODE', '')}:"
            f" sysctl -w {INSTANCES}=8192"
        )


CHECKS = {
    "the operator is ready": lambda: read(f"{os.environ['OPERATOR']}/readyz"),
    "mcm is ready": lambda: read(f"{os.environ['MCM']}/readyz"),
    "the API server serves the kinds of kplane": check_kinds,
    "this node has inotify instances for one more API server": check_inotify,
}
if gateway := os.environ.get("GATEWAY"):
    CHECKS["the gateway is ready"] = lambda: read(f"{gateway}/readyz")


def main() -> int:
    """Run each check until it passes or the time is over."""
    deadline = time.monotonic() + float(os.environ["SECONDS_AT_MOST"])
    failed = 0
    for name, check in CHECKS.items():
        while True:
            try:
                check()
            except OSError as error:
                # The network lets this pod in some seconds after its start.
                if time.monotonic() < deadline:
                    time.sleep(1.0)
                    continue
                print(f"FAILED: {name}: {error}", flush=True)
                failed += 1
            else:
                print(f"ok: {name}", flush=True)
            break
    return int(failed > 0)


sys.exit(main())
