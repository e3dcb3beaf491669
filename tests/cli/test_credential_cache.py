"""The credential cache: private files, expiry, and removal of credentials that an API server refused."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from kubernetes.client import Configuration
from kubernetes.config.kube_config import KubeConfigLoader

from kplane.cli import credential_cache
from kplane.cli.credential_cache import forget, hand_out, hand_out_last, keep
from kplane.cli.exec_plugin import plugin_entry, print_credential, renew_plugin
from kplane.provider import ClusterConfig

UID = "3c8e0e0e-0a0b-4a4a-8a8a-000000000001"
HOUR = 3600.0


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kplane" / "credentials"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> object:
    """`client(name)` sets the identity of the process that asks for a credential."""
    return lambda name: monkeypatch.setattr(credential_cache, "_client", lambda: name)


def kept(life: float = HOUR, *, age: float = 0.0) -> None:
    keep(UID, '"token": "a.b.c"', issued=time.time() - age, expires=time.time() - age + life)


def token_of(answer: str | None) -> str | None:
    return None if answer is None else json.loads(answer)["status"]["token"]


def token(*, issued: float, expires: float) -> str:
    payload = base64.urlsafe_b64encode(json.dumps({"iat": issued, "exp": expires}).encode()).decode().rstrip("=")
    return f"e30.{payload}.c2ln"


def test_credential_is_handed_out_to_each_client_once(client) -> None:
    client("first")
    assert hand_out(UID) is None
    kept()
    # The first client got the credential when it was kept. A second request means that the API server answered 401.
    assert hand_out(UID) is None
    client("second")
    assert token_of(hand_out(UID)) == "a.b.c"
    assert hand_out(UID) is None
    client("third")
    assert token_of(hand_out(UID)) == "a.b.c"
    # A new credential is valid for all clients.
    client("second")
    kept()
    client("third")
    assert token_of(hand_out(UID)) == "a.b.c"


def test_client_gets_credential_again_after_its_own_expires(client, monkeypatch: pytest.MonkeyPatch) -> None:
    client("first")
    kept()
    now = time.time()
    monkeypatch.setattr(credential_cache.time, "time", lambda: now + credential_cache.VALID_SECONDS + 1.0)
    assert token_of(hand_out(UID)) == "a.b.c"
    assert hand_out(UID) is None


def test_credential_is_valid_for_more_than_ten_minutes() -> None:
    """The official Python client refreshes 5 minutes before the expiry: with 300 s, on each request."""
    answer = json.loads(keep(UID, '"token": "a"', issued=time.time(), expires=time.time() + HOUR))
    expires = datetime.fromisoformat(answer["status"]["expirationTimestamp"]).timestamp()
    assert 600 < expires - time.time() <= 900


@pytest.mark.parametrize(
    ("life", "asks_after", "is_refused"), [(3600, 590, True), (3600, 610, False), (400, 150, True)]
)
def test_credential_is_refused_to_client_that_asks_too_early(
    client, monkeypatch: pytest.MonkeyPatch, life: float, asks_after: float, is_refused: bool
) -> None:
    client("first")
    kept(life)
    now = time.time()
    monkeypatch.setattr(credential_cache.time, "time", lambda: now + asks_after)
    # A request long before the expiry means that the API server answered 401.
    assert (hand_out(UID) is None) is is_refused


def test_cached_credential_is_unused_after_two_thirds_of_its_life(client) -> None:
    client("first")
    kept(age=0.65 * HOUR)
    client("second")
    assert hand_out(UID) is not None
    client("first")
    kept(age=0.68 * HOUR)
    client("second")
    assert hand_out(UID) is None
    # If the management cluster is unreachable, the credential is used until its expiry.
    assert token_of(hand_out_last(UID)) == "a.b.c"
    kept(age=1.01 * HOUR)
    assert hand_out_last(UID) is None


def test_expiration_timestamp_is_not_after_end_of_credential() -> None:
    answer = json.loads(keep(UID, '"token": "a"', issued=0.0, expires=1_000_000_000.0))
    assert answer["apiVersion"] == "client.authentication.k8s.io/v1"
    assert answer["status"]["expirationTimestamp"] == "2001-09-09T01:46:40Z"


def test_credential_without_uid_has_expiry_of_its_token() -> None:
    ending = token(issued=0.0, expires=1_000_000_000.0)
    answer = json.loads(print_credential(ClusterConfig(server="https://x", token=ending), uid=None))
    assert answer["status"]["expirationTimestamp"] == "2001-09-09T01:46:40Z"


def test_forgotten_credential_is_not_handed_out(client) -> None:
    client("first")
    kept()
    client("second")
    forget(UID)
    assert hand_out(UID) is None
    forget(UID)


def test_cache_directory_and_files_are_private(directory: Path) -> None:
    kept()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert sorted(path.name for path in directory.iterdir()) == [UID, f"{UID}.clients"]


def test_keep_removes_old_files_of_other_control_planes(directory: Path) -> None:
    kept()
    long_ago = time.time() - 31 * 86400.0
    for path in directory.iterdir():
        os.utime(path, (long_ago, long_ago))
    keep("0-0", '"token": "a"', issued=0.0, expires=1.0)
    assert sorted(path.name for path in directory.iterdir()) == ["0-0", "0-0.clients"]


def test_files_that_others_can_read_and_symlinks_are_not_used(client, directory: Path) -> None:
    client("first")
    kept()
    client("second")
    (directory / UID).chmod(0o640)
    assert hand_out(UID) is None
    (directory / UID).chmod(0o600)
    directory.chmod(0o755)
    assert hand_out(UID) is None
    directory.chmod(0o700)
    (directory / UID).rename(directory / "real")
    (directory / UID).symlink_to(directory / "real")
    assert hand_out(UID) is None


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", "a/b", ".", "A" * 65])
def test_uid_that_is_no_file_name_is_not_cached(uid: str, tmp_path: Path) -> None:
    assert token_of(keep(uid, '"token": "a"', issued=0.0, expires=time.time() + HOUR)) == "a"
    assert hand_out(uid) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_record_of_2000_clients_stays_below_20_kib(client, directory: Path) -> None:
    client("first")
    kept()
    for number in range(2000):
        client(f"{number}:12345678")
        hand_out(UID)
    assert (directory / f"{UID}.clients").stat().st_size < 20 * 1024


def test_token_with_time_claims_is_cached() -> None:
    now = time.time()
    config = ClusterConfig(server="https://x", token=token(issued=now, expires=now + HOUR))
    assert token_of(print_credential(config, uid=UID)) == config.token
    assert token_of(hand_out_last(UID)) == config.token


def test_token_without_readable_claims_is_not_cached() -> None:
    assert token_of(print_credential(ClusterConfig(server="https://x", token="opaque"), uid=UID)) == "opaque"
    assert hand_out_last(UID) is None


def test_plugin_answers_from_the_cache_without_heavy_imports(directory: Path) -> None:
    now = time.time()
    good = token(issued=now, expires=now + HOUR)
    print_credential(ClusterConfig(server="https://x", token=good), uid=UID)
    entry = plugin_entry("acme", uid=UID, internal=False, context="absent", kubeconfigs=[Path("none")])
    program = (
        "import runpy, sys\n"
        f"sys.argv = ['credential', *{entry['args'][entry['args'].index('acme') :]!r}]\n"
        "runpy.run_module('kplane.cli.credential', run_name='__main__')\n"
        "print(sorted({'typer', 'json', 'asyncio', 'pathlib', 'yaml'} & set(sys.modules)), file=sys.stderr)\n"
    )
    # The test process has the credential already. The shell between test and plugin counts as another client.
    command = ["/bin/sh", "-c", f'"{sys.executable}" -E -P -c "$0"; true', program]
    result = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True, timeout=60)
    assert token_of(result.stdout) == good
    assert result.stderr == "[]\n"


def test_plugin_entry_has_absolute_kubeconfig_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entry = plugin_entry("acme", uid=None, internal=True, context="kplane", kubeconfigs=[Path("config")])
    assert entry["env"] == [{"name": "KUBECONFIG", "value": str(tmp_path / "config")}]
    assert entry["args"][-3:] == ["--internal", "--context", "kplane"]
    assert "--uid" not in entry["args"]


def test_renew_plugin_updates_only_old_entry_of_kplane() -> None:
    old_entry = {
        "command": "/old/python",
        "args": ["-m", "kplane.cli.main", "credential", "acme", "--context", "kplane"],
    }
    renewed = renew_plugin(old_entry)
    assert renewed == {
        "command": sys.executable,
        "args": ["-E", "-P", "-m", "kplane.cli.credential", "acme", "--context", "kplane"],
    }
    assert renew_plugin(renewed) is None
    assert renew_plugin({"command": "aws", "args": ["eks", "get-token"]}) is None


def test_credential_kept_by_clock_ahead_is_not_handed_out(client, monkeypatch: pytest.MonkeyPatch) -> None:
    client("first")
    ahead = time.time_ns() + 2 * 86400 * 10**9
    with monkeypatch.context() as patch:
        patch.setattr(credential_cache.time, "time_ns", lambda: ahead)
        patch.setattr(credential_cache.time, "time", lambda: ahead / 10**9)
        kept()
    client("second")
    assert hand_out(UID) is None
    kept()
    client("third")
    assert token_of(hand_out(UID)) == "a.b.c"


def test_official_python_client_runs_plugin_once_for_ten_requests(tmp_path: Path) -> None:
    runs, plugin = tmp_path / "runs", tmp_path / "plugin.py"
    plugin.write_text(
        "import pathlib\n"
        "from kplane.cli.credential_cache import render\n"
        f"with pathlib.Path({str(runs)!r}).open('a') as file:\n"
        "    file.write('run\\n')\n"
        'print(render(\'"token": "a"\'))\n'
    )
    exec_entry = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(plugin)],
        "interactiveMode": "Never",
    }
    document = {
        "clusters": [{"name": "acme", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "acme", "user": {"exec": exec_entry}}],
        "contexts": [{"name": "acme", "context": {"cluster": "acme", "user": "acme"}}],
        "current-context": "acme",
    }
    configuration = Configuration()
    KubeConfigLoader(document).load_and_set(configuration)
    for _ in range(10):
        assert configuration.get_api_key_with_prefix("BearerToken") == "Bearer a"
    assert runs.read_text().splitlines() == ["run"]
