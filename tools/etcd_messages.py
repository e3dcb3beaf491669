"""Writes the messages of etcd's API for kplane.data, from etcd's own .proto files: `python -m tools.etcd_messages`.

The files come from etcd's Go module, in the version that kplane.binaries pins. `make generate-etcd-messages` runs this
module on a machine with protoc. Two parts change. Options are removed, because they need three more packages of
protobuf. The package gets a new name. protobuf has a single registry for each process, and another etcd
client may have registered etcd's names there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["main", "merge"]

_MODULE: Final = "go.etcd.io/etcd/api/v3"
_SOURCES: Final = ("mvccpb/kv.proto", "authpb/auth.proto", "etcdserverpb/rpc.proto")
_ROOT: Final = Path(__file__).resolve().parent.parent
_GO_MOD: Final = _ROOT / "binaries" / "kplane" / "binaries" / "modules" / "etcd" / "go.mod"
_INTO: Final = _ROOT / "data" / "kplane" / "data" / "_proto"
_HEAD: Final = """\
// The messages of etcd's API, of {module} {version}: {sources}.
// Copyright the etcd authors; Apache License 2.0, see LICENSE. Written by `make generate-etcd-messages`; changed:
// services and options are left out, and the package has another name.
syntax = "proto3";
package kplane_etcd;
"""


def merge(sources: list[str]) -> str:
    """Join .proto files into the messages and enums of a single package, without services, options and comments."""
    text = "\n".join(sources)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^(syntax|package|import)\b[^;]*;", "", text, flags=re.MULTILINE)
    text = _without_blocks(text)
    text = re.sub(r"^\s*option\s[^;]*;", "", text, flags=re.MULTILINE)
    text = re.sub(r"\s*\[[^\]]*\]\s*;", ";", text)
    text = re.sub(r"\b(mvccpb|authpb)\.", "", text)
    text = re.sub(r"^\};", "}", text, flags=re.MULTILINE)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines() if line.strip())


def _without_blocks(text: str) -> str:
    """Remove each service, and each option in braces of a file."""
    kept, position = [], 0
    for match in re.finditer(r"^(service\s+\w+|option\s+\([^)]*\)\s*=)\s*\{", text, flags=re.MULTILINE):
        if match.start() < position:
            continue
        kept.append(text[position : match.start()])
        depth, position = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            position += 1
    return "".join(kept) + text[position:].replace("\n;", "\n")


def main() -> int:
    """Write etcd.proto, and the modules that protoc generates from it. Returns the exit status."""
    pinned = re.search(rf"{re.escape(_MODULE)} (v\S+)", _GO_MOD.read_text())
    if pinned is None:
        print(f"error: {_GO_MOD.relative_to(_ROOT)} does not name {_MODULE}", file=sys.stderr)
        return 1
    version = pinned.group(1)
    # `go` is the Go tool chain on PATH, which builds the other programs too.
    download = subprocess.run(
        ["go", "mod", "download", "-json", f"{_MODULE}@{version}"],
        check=True,
        stdout=subprocess.PIPE,
    )
    module = Path(json.loads(download.stdout)["Dir"])
    merged = merge([(module / name).read_text() for name in _SOURCES])
    head = _HEAD.format(module=_MODULE, version=version, sources=", ".join(_SOURCES))
    (_INTO / "etcd.proto").write_text(f"{head}{merged}")
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={_INTO}"]
    subprocess.run([*protoc, f"--python_out={_INTO}", f"--pyi_out={_INTO}", "etcd.proto"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
