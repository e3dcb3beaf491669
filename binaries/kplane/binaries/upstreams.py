"""The upstreams whose programs kplane uses. Their versions are pinned by a go.mod each, and nowhere else."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kplane.binaries.errors import BinariesError

__all__ = [
    "ETCD",
    "HELM",
    "KIND",
    "KUBERNETES",
    "RUNTIME",
    "UPSTREAMS",
    "Platform",
    "Release",
    "Upstream",
    "parse_platform",
    "this_platform",
]

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


def parse_platform(text: str) -> Platform:
    """Read a platform as container images name it, "linux/arm64". Raises BinariesError for one without programs."""
    known = {f"linux/{arch}": Platform("linux", arch) for arch in _ARCHITECTURES.values()}
    if text not in known:
        raise BinariesError(f"{text!r} is no platform that kplane runs on; say {' or '.join(known)}.")
    return known[text]


@dataclass(frozen=True, slots=True)
class Release:
    """Where a project publishes its programs: a site, and templates of what is below it.

    The templates may name {version}, {os}, {arch} and {program}.
    """

    site: str
    file: str
    """A program, or the archive of all of them."""
    checksums: str
    """Lines "<SHA-256>  <name of the file>", or one bare checksum."""
    member: str | None = None
    """A program in the archive; None where the file is the program."""


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
    release: Release
    stamps: Mapping[str, str] = field(default_factory=dict)
    """Go variables that are set when the programs are linked; may name {version}, {major} and {minor}."""

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


_MODULES = Path(__file__).resolve().parent / "modules"

KUBERNETES = Upstream(
    name="kubernetes",
    title="Kubernetes",
    directory=_MODULES / "kubernetes",
    module="k8s.io/kubernetes",
    packages={
        program: f"k8s.io/kubernetes/cmd/{program}"
        for program in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    },
    release=Release(
        site="https://dl.k8s.io/release",
        file="v{version}/bin/{os}/{arch}/{program}",
        checksums="v{version}/bin/{os}/{arch}/{program}.sha256",
    ),
    stamps={
        f"{package}.{variable}": value
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for variable, value in {
            "gitVersion": "v{version}",
            "gitMajor": "{major}",
            "gitMinor": "{minor}",
            "gitTreeState": "clean",
        }.items()
    },
)

ETCD = Upstream(
    name="etcd",
    title="etcd",
    directory=_MODULES / "etcd",
    module="go.etcd.io/etcd/server/v3",
    packages={
        "etcd": "go.etcd.io/etcd/server/v3",
        "etcdctl": "go.etcd.io/etcd/etcdctl/v3",
        "etcdutl": "go.etcd.io/etcd/etcdutl/v3",
    },
    release=Release(
        site="https://github.com/etcd-io/etcd/releases/download",
        file="v{version}/etcd-v{version}-{os}-{arch}.tar.gz",
        checksums="v{version}/SHA256SUMS",
        member="etcd-v{version}-{os}-{arch}/{program}",
    ),
)

HELM = Upstream(
    name="helm",
    title="Helm",
    directory=_MODULES / "helm",
    module="helm.sh/helm/v4",
    packages={"helm": "helm.sh/helm/v4/cmd/helm"},
    release=Release(
        site="https://get.helm.sh",
        file="helm-v{version}-{os}-{arch}.tar.gz",
        checksums="helm-v{version}-{os}-{arch}.tar.gz.sha256sum",
        member="{os}-{arch}/{program}",
    ),
    stamps={
        "helm.sh/helm/v4/internal/version.version": "v{version}",
        "helm.sh/helm/v4/internal/version.gitTreeState": "clean",
    },
)

KIND = Upstream(
    name="kind",
    title="kind",
    directory=_MODULES / "kind",
    module="sigs.k8s.io/kind",
    packages={"kind": "sigs.k8s.io/kind"},
    release=Release(
        site="https://github.com/kubernetes-sigs/kind/releases/download",
        file="v{version}/kind-{os}-{arch}",
        checksums="v{version}/kind-{os}-{arch}.sha256sum",
    ),
)

RUNTIME = (KUBERNETES, ETCD)
"""What kplane needs to run."""

UPSTREAMS = (*RUNTIME, HELM, KIND)
"""What its developers use as well."""
