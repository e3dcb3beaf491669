"""Lists the upstreams whose programs kplane uses. A go.mod for each upstream pins its version."""

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
    "KWOK",
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
    """Names an operating system and a processor as Go does."""

    os: str
    arch: str


def this_platform() -> Platform:
    """Return the platform of this machine. Raises BinariesError if upstream has no programs for it."""
    arch = _ARCHITECTURES.get(platform.machine().lower())
    if platform.system() != "Linux" or arch is None:
        raise BinariesError(
            f"failed to find programs for {platform.system()} on {platform.machine()}: kplane runs on Linux, on amd64 "
            f"or arm64"
        )
    return Platform("linux", arch)


def parse_platform(text: str) -> Platform:
    """Parse the platform of a container image, for example "linux/arm64". Raises BinariesError if it is unsupported."""
    platforms = {f"linux/{arch}": Platform("linux", arch) for arch in _ARCHITECTURES.values()}
    if text not in platforms:
        raise BinariesError(
            f"failed to read platform {text!r}: kplane does not run on it; use {' or '.join(platforms)}"
        )
    return platforms[text]


@dataclass(frozen=True, slots=True)
class Release:
    """Holds the site of a project's releases, and templates of the paths there.

    The templates can use {version}, {os}, {arch} and {program}.
    """

    site: str
    file: str
    """Path of the program, or of the archive of all programs."""
    checksums: str | None
    """Path of the published checksums: lines "<SHA-256>  <file>", or a single bare checksum.

    They are only read to record them: `make checksums`. None: the project publishes no checksums, and its programs are
    built from source.
    """
    member: str | None = None
    """Path of a program in the archive; None if the file is the program."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Describes a project and its programs."""

    name: str
    title: str
    directory: Path
    """Directory of the go.mod that pins the version."""
    module: str
    """Go module that has the version of the programs."""
    packages: Mapping[str, str]
    """Go package by program."""
    release: Release
    stamps: Mapping[str, str] = field(default_factory=dict)
    """Go variables for the linker. Values can use {version}, {major} and {minor}."""

    @property
    def programs(self) -> tuple[str, ...]:
        return tuple(self.packages)

    @property
    def go_mod(self) -> Path:
        return self.directory / "go.mod"

    @property
    def recorded(self) -> Path:
        """File of the recorded checksums: lines "<SHA-256>  <path at the release site>"."""
        return self.directory / "SHA256SUMS"

    @property
    def version(self) -> str:
        """The pinned version, without "v". Raises BinariesError if go.mod has no version."""
        return self._read(
            rf"^(?:require)?\s+{re.escape(self.module)}\s+v(\d+\.\d+\.\d+\S*)", what=f"a version of {self.module}"
        )

    @property
    def go_version(self) -> str:
        """The oldest Go that can build the programs. Raises BinariesError if go.mod has no version of Go."""
        return self._read(r"^go\s+(\d+\.\d+(?:\.\d+)?)", what="a version of Go")

    def fill(self, template: str, *, platform: Platform, program: str = "") -> str:
        """Fill a template of the release. Raises BinariesError if go.mod has no version."""
        return template.format(version=self.version, os=platform.os, arch=platform.arch, program=program)

    def _read(self, pattern: str, *, what: str) -> str:
        try:
            match = re.search(pattern, self.go_mod.read_text(), re.MULTILINE)
        except OSError as error:
            raise BinariesError(f"failed to read the version of {self.title}: {error}; restore it from git") from error
        if match is None:
            raise BinariesError(f"failed to read {self.go_mod}: it does not require {what}; restore it from git")
        return match[1]


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

KWOK = Upstream(
    name="kwok",
    title="kwok",
    directory=_MODULES / "kwok",
    module="sigs.k8s.io/kwok",
    packages={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
    release=Release(
        site="https://github.com/kubernetes-sigs/kwok/releases/download",
        file="v{version}/kwok-{os}-{arch}",
        checksums=None,
    ),
    stamps={"sigs.k8s.io/kwok/pkg/consts.Version": "v{version}"},
)
"""kwok plays the nodes of control planes on this machine, if a user requests them."""

RUNTIME = (KUBERNETES, ETCD)
"""Upstreams that kplane needs to run."""

UPSTREAMS = (*RUNTIME, HELM, KIND, KWOK)
"""All upstreams, including upstreams that kplane does not need to run."""
