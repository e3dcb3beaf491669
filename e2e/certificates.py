"""Creates certificates with openssl, as users do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["make_certificate"]


def make_certificate(directory: Path, name: str, *args: str) -> tuple[Path, Path]:
    """Create NAME.crt and NAME.key in the directory, for two days, with a key of an elliptic curve. Returns both paths.

    `args` are further arguments of `openssl req`. Without `-CA` and `-CAkey`, which name files in the directory, the
    certificate is self-signed. Only this user can read the key. Raises AssertionError with openssl's errors.
    """
    program = shutil.which("openssl")
    assert program, "failed to find openssl on PATH: install it"
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    key.touch(mode=0o600)
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-keyout", str(key), "-out", str(certificate), *args]
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"failed to make {certificate.name}: {result.stderr}"
    return certificate, key
