"""Runs curl as the user of a published kubeconfig: a client that knows nothing of Kubernetes."""

from __future__ import annotations

import base64
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml

from e2e.tenant import Tenant

__all__ = ["Curl"]

_SECONDS = 200


@dataclass(frozen=True, slots=True)
class Curl:
    """One API server, and a token for it."""

    server: str
    ca: Path
    token: str | None

    @classmethod
    def of(cls, tenant: Tenant, *, anonymous: bool = False) -> Self:
        """Read the tenant's kubeconfig."""
        file = tenant.kubectl.kubeconfig
        kubeconfig = yaml.safe_load(file.read_text())
        cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
        ca = file.with_suffix(".ca.crt")
        ca.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
        return cls(cluster["server"], ca, None if anonymous else user["token"])

    def __call__(self, path: str, *args: str, stdin: str = "") -> tuple[int, str]:
        """Send one request, and return status and body. Raises AssertionError if there is no answer."""
        command = ["curl", "--silent", "--show-error", "--cacert", str(self.ca), "--write-out", "\n%{http_code}"]
        if self.token is not None:
            command += ["--config", "-"]
            # Through its standard input, because others see the arguments of a program.
            stdin = f'header = "Authorization: Bearer {self.token}"\n{stdin}'
        done = subprocess.run(
            [*command, *args, f"{self.server}{path}"],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert done.returncode == 0, f"failed to run `curl {' '.join(args)} {path}`: {done.stderr}"
        body, _, status = done.stdout.rpartition("\n")
        return int(status), body
