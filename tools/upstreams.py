"""The two upstreams whose programs kplane runs. Their versions are pinned by a go.mod each, and nowhere else."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.errors import BinariesError

__all__ = ["ETCD", "KUBERNETES", "UPSTREAMS", "Platform", "Upstream", "this_platform"]

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True, slots=True)
class Platform:
    """An operating system and a processor, by the names that Go uses."""

    os: str
    arch: str


def this_platform() -> Platform:
    """The machine this runs on. Raises BinariesError where upstream has no programs for it."""
    arch = _ARCHITECTURES.get(platform.machine().lower())
    if platform.system() != "Linux" or arch is None:
        raise BinariesError(
            f"kplane runs on Linux, on amd64 or arm64, and this is {platform.system()} on {platform.machine()}."
        )
    return Platform("linux", arch)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A project that programs come from."""

    name: str
    title: str
    directory: Path
    """Holds the go.mod that pins the version."""
    module: str
    """The Go module whose version is the version of the programs."""
    packages: Mapping[str, str]
    """Go package by program."""
    stamped_packages: tuple[str, ...] = ()
    """Go packages that are told the version when the programs are linked."""

    @property
    def programs(self) -> tuple[str, ...]:
        return tuple(self.packages)

    @property
    def go_mod(self) -> Path:
        return self.directory / "go.mod"

    @property
    def version(self) -> str:
        """The pinned version, without "v". Raises BinariesError when go.mod does not say."""
        return self._read(
            rf"^(?:require)?\s+{re.escape(self.module)}\s+v(\d+\.\d+\.\d+\S*)", what=f"a version of {self.module}"
        )

    @property
    def go_version(self) -> str:
        """The oldest Go that can build the programs. Raises BinariesError when go.mod does not say."""
        return self._read(r"^go\s+(\d+\.\d+(?:\.\d+)?)", what="a version of Go")

    def _read(self, pattern: str, *, what: str) -> str:
        try:
            found = re.search(pattern, self.go_mod.read_text(), re.MULTILINE)
        except OSError as error:
            raise BinariesError(f"{self.go_mod}, which pins {self.title}, cannot be read: {error.strerror}.") from error
        if found is None:
            raise BinariesError(f"{self.go_mod} does not require {what}; restore it from git.")
        return found[1]


_HERE = Path(__file__).resolve().parent

KUBERNETES = Upstream(
    name="kubernetes",
    title="Kubernetes",
    directory=_HERE / "kubernetes",
    module="k8s.io/kubernetes",
    packages={
        program: f"k8s.io/kubernetes/cmd/{program}"
        for program in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    },
    stamped_packages=("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"),
)

ETCD = Upstream(
    name="etcd",
    title="etcd",
    directory=_HERE / "etcd",
    module="go.etcd.io/etcd/server/v3",
    packages={
        "etcd": "go.etcd.io/etcd/server/v3",
        "etcdctl": "go.etcd.io/etcd/etcdctl/v3",
        "etcdutl": "go.etcd.io/etcd/etcdutl/v3",
    },
)

UPSTREAMS = (KUBERNETES, ETCD)
