"""Checks an installation for `helm test`: both operators are ready, and the API server serves kplane's kinds."""

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


CHECKS = {
    "the operator is ready": lambda: read(f"{os.environ['OPERATOR']}/readyz"),
    "mcm is ready": lambda: read(f"{os.environ['MCM']}/readyz"),
    "the API server serves the kinds of kplane": check_kinds,
}


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
