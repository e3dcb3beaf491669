"""Makes certificates of users with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["make_certificate"]


def make_certificate(directory: Path, name: str, *args: str) -> tuple[Path, Path]:
    """Make NAME.crt and NAME.key in the directory, with an elliptic curve and for two days; `args` go to `openssl req`.

    Without `-CA` and `-CAkey`, files in the directory, the certificate is its own CA. Only this user can read the key.
    Raises AssertionError with openssl's errors.
    """
    program = shutil.which("openssl")
    assert program, "failed to find openssl on PATH: install it"
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    key.touch(mode=0o600)
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-keyout", str(key), "-out", str(certificate), *args]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"failed to make {certificate.name}: {done.stderr}"
    return certificate, key
