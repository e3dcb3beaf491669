"""Runs curl as the user of a published kubeconfig: a client without support for Kubernetes."""

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
    """An API server, its CA, and a token for it; None for anonymous requests."""

    server: str
    ca: Path
    token: str | None

    @classmethod
    def of(cls, tenant: Tenant, *, anonymous: bool = False) -> Self:
        """Read server, CA and token from the tenant's kubeconfig. Writes the CA to a file beside the kubeconfig."""
        file = tenant.kubectl.kubeconfig
        kubeconfig = yaml.safe_load(file.read_text())
        cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
        ca = file.with_suffix(".ca.crt")
        ca.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
        return cls(cluster["server"], ca, None if anonymous else user["token"])

    def __call__(self, path: str, *args: str, stdin: str = "") -> tuple[int, str]:
        """Send a request, and return status and body. Raises AssertionError if there is no answer."""
        command = ["curl", "--silent", "--show-error", "--cacert", str(self.ca), "--write-out", "\n%{http_code}"]
        if self.token is not None:
            command += ["--config", "-"]
            # The token goes through standard input, because other users can see the arguments of a program.
            stdin = f'header = "Authorization: Bearer {self.token}"\n{stdin}'
        result = subprocess.run(
            [*command, *args, f"{self.server}{path}"],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert result.returncode == 0, f"failed to run `curl {' '.join(args)} {path}`: {result.stderr}"
        body, _, status = result.stdout.rpartition("\n")
        return int(status), body
