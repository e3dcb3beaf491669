"""Credential files of the etcd client: private, and always with a matching certificate and key."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.controlplane_operator.backends.virtual import VirtualProvisioner
from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.certificates import authority_of, create_credentials
from kplane.controlplane_operator.shared_etcd.files import write_credentials
from kplane.controlplane_operator.status.errors import ConditionError

NAMES = {"ca.crt", "client.crt", "client.key"}


def test_files_are_private_and_exclude_key_of_authority(tmp_path: Path) -> None:
    credentials = create_credentials("etcd")
    directory = tmp_path / "state" / "etcd"
    directory.mkdir(parents=True, mode=0o755)

    place = write_credentials(directory, credentials)

    assert {path.name: path.read_bytes() for path in place.iterdir()} == {name: credentials[name] for name in NAMES}
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}
    assert directory.stat().st_mode & 0o777 == place.stat().st_mode & 0o777 == 0o700


def test_previous_files_are_kept_and_older_files_removed(tmp_path: Path) -> None:
    generations = [create_credentials("etcd") for _ in range(4)]
    places = []
    for credentials in generations:
        places.append(write_credentials(tmp_path, credentials))
        assert write_credentials(tmp_path, credentials) == places[-1]
        assert set(tmp_path.iterdir()) == set(places[-2:])
    assert (places[-2] / "client.key").read_bytes() == generations[-2]["client.key"]


def test_incomplete_files_of_a_crash_are_completed(tmp_path: Path) -> None:
    credentials = create_credentials("etcd")
    place = write_credentials(tmp_path, credentials)
    (place / "client.key").write_bytes(b"")
    (place / "ca.crt").unlink()
    assert write_credentials(tmp_path, credentials) == place
    assert {path.name: path.read_bytes() for path in place.iterdir()} == {name: credentials[name] for name in NAMES}


async def test_missing_credentials_raise_error_with_reason() -> None:
    etcd = SharedEtcd("https://etcd.example:2379")
    etcd.lacks("the API server is away")
    message = "shared etcd at https://etcd.example:2379 are not there yet: the API server is away"
    for use in (lambda: etcd.keyspace, lambda: etcd.authority):
        with pytest.raises(KeyspaceError, match=message):
            use()
    assert message in (await etcd.problem() or "")


def test_credentials_are_read_from_external_directory(tmp_path: Path) -> None:
    credentials = create_credentials("etcd")
    for name, content in credentials.items():
        (tmp_path / name).write_bytes(content)
    etcd = SharedEtcd.from_directory(tmp_path, endpoint="https://etcd.example:2379")
    assert etcd.authority == authority_of(credentials)
    assert etcd.keyspace.credentials == tmp_path
    assert etcd.keyspace.endpoint == "https://etcd.example:2379"


async def test_operator_starts_without_etcd_credentials() -> None:
    """On a cluster the operator creates the credentials itself, after its start."""
    context: Any = SimpleNamespace(client=None, stores=None, triggers=None, events=None)
    runtime: Any = None
    etcd = SharedEtcd("https://kplane-etcd:2379")
    virtual = VirtualProvisioner(context, runtime=runtime, shared_etcd=etcd, restorer=runtime)
    acme = ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "1"}, "spec": {}})
    with pytest.raises(ConditionError, match="https://kplane-etcd:2379 are not there yet"):
        await virtual.take_over(acme, former="2")
