"""Exec credential plugins: allowed explicitly, and their credentials are never shown."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
import os
import stat
from pathlib import Path

import pytest

from kplane.provider import Client, ClusterConfig
from kplane.provider.access.exec_plugin import ExecPlugin
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.errors import KubeconfigError, Unauthorized

OBJECT = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}
V1 = "client.authentication.k8s.io/v1"
SECRET = "a-token-that-nobody-may-see-0123456789"


@pytest.fixture
def plugin(tmp_path):
    """`plugin(script, **fields)`: a plugin whose program is a shell script; $RUNS counts its runs."""

    def make(script, **fields):
        path = tmp_path / f"plugin-{len(os.listdir(tmp_path))}"
        path.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return ExecPlugin(str(path), **fields)

    return make


@pytest.fixture
def runs(tmp_path):
    return lambda: len((tmp_path / "runs").read_text().splitlines()) if (tmp_path / "runs").exists() else 0


def prints(api_version=V1, kind="ExecCredential", **status):
    document = json.dumps({"apiVersion": api_version, "kind": kind, "status": status})
    return f"cat <<'END'\n{document}\nEND"


def config_of(server, plugin):
    return ClusterConfig(server.config.server, ca_data=server.config.ca_data, exec_plugin=plugin)


def refusing(tools, *, good):
    async def answer(asked, writer):
        if asked.headers.get("authorization") == f"Bearer {good}":
            writer.write(tools.http(OBJECT))
        else:
            writer.write(tools.http({"kind": "Status", "code": 401, "message": "no"}, status=401))

    return answer


async def test_plugin_token_is_used_until_it_expires(fault_server, tools, plugin, runs):
    server = await fault_server(refusing(tools, good="one"))
    later = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).isoformat()
    async with Client(config_of(server, plugin(prints(token="one", expirationTimestamp=later)))) as client:
        await asyncio.gather(*(client.get(NAMESPACES, "a") for _ in range(5)))
    assert runs() == 1
    async with Client(
        config_of(server, plugin(prints(token="one", expirationTimestamp="2020-01-01T00:00:00Z")))
    ) as client:
        await client.get(NAMESPACES, "a")
        await client.get(NAMESPACES, "a")
    assert runs() == 3


async def test_plugin_runs_again_when_its_token_is_refused(fault_server, tools, plugin, runs, monkeypatch):
    monkeypatch.setattr("kplane.provider.access.credentials._RUN_AGAIN_SECONDS", 0.0)
    server = await fault_server(refusing(tools, good="two"))
    script = f'if [ -e "$0.ran" ]; then {prints(token="two")}\nelse {prints(token="one")}\nfi; touch "$0.ran"'
    async with Client(config_of(server, plugin(script))) as client:
        await client.get(NAMESPACES, "a")
        assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer one", "Bearer two"]
        await client.get(NAMESPACES, "a")
    assert runs() == 2


async def test_plugin_runs_once_for_server_that_refuses_each_token(fault_server, tools, plugin, runs, monkeypatch):
    monkeypatch.setattr("kplane.provider.access.credentials._RUN_AGAIN_SECONDS", 600.0)
    server = await fault_server(refusing(tools, good="none"))
    async with Client(config_of(server, plugin(prints(token="one")))) as client:
        for _ in range(5):
            with pytest.raises(Unauthorized):
                await client.get(NAMESPACES, "a")
    assert runs() == 1


async def test_plugin_certificate_is_presented_to_the_server(fault_server, tools, plugin):
    authority = tools.Authority()
    issued = authority.issue("somebody")
    given = prints(clientCertificateData=issued.certificate.decode(), clientKeyData=issued.key.decode())

    async def answer(_, writer):
        writer.write(tools.http(OBJECT))

    server = await fault_server(answer, clients=authority)
    async with Client(config_of(server, plugin(given))) as client:
        await client.get(NAMESPACES, "a")
    assert server.certificates == [issued.certificate]


@pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
async def test_plugin_gets_cluster_info_if_requested(plugin, tmp_path, version):
    script = f'printf "%s" "$KUBERNETES_EXEC_INFO" > {tmp_path}/told; printf "%s" "$EXTRA" > {tmp_path}/extra\n'
    script += prints(version, token="t")
    wants = plugin(
        script, api_version=version, env={"EXTRA": "e"}, provide_cluster_info=True, cluster_config={"audience": "x"}
    )
    await wants.run(cluster={"server": "https://a"})
    assert json.loads((tmp_path / "told").read_text()) == {
        "apiVersion": version,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://a", "config": {"audience": "x"}}},
    }
    assert (tmp_path / "extra").read_text() == "e"
    await plugin(script, api_version=version).run(cluster={"server": "https://a"})
    assert "cluster" not in json.loads((tmp_path / "told").read_text())["spec"]


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("exit 3", "failed with exit code 3"),
        (f"echo login first, {SECRET} >&2; exit 1", r"exit code 1: login first, \[hidden\]"),
        (f"echo {SECRET}", "no JSON"),
        (f"echo '[\"{SECRET}\"]'", "no ExecCredential"),
        (prints("client.authentication.k8s.io/v1beta1", token=SECRET), "another version"),
        (prints(kind="Secret", token=SECRET), "no ExecCredential"),
        (prints(), "no token, and no certificate"),
        (prints(clientKeyData=SECRET), "only one of"),
        (prints(token=f"{SECRET}\n"), "no HTTP header"),
        (prints(token=7), "no texts"),
        (prints(token=SECRET, expirationTimestamp="tomorrow"), "no time of RFC 3339"),
        (f'echo \'{{"apiVersion": "{V1}", "kind": "ExecCredential"}}\'', "no status"),
        ("head -c 3000000 /dev/zero", "more than 1048576 bytes"),
    ],
)
async def test_invalid_credential_error_hides_plugin_output(plugin, script, sentence):
    with pytest.raises(KubeconfigError, match=sentence) as caught:
        await plugin(script).run(cluster={})
    error = caught.value
    while error is not None:
        assert SECRET not in str(vars(error)) + str(error)
        error = error.__cause__


async def test_plugin_that_hangs_is_killed_with_its_children(plugin, tmp_path, eventually, monkeypatch):
    scopes, timeout = [], asyncio.timeout

    def note(seconds):
        scopes.append((seconds, timeout(seconds)))
        return scopes[-1][1]

    monkeypatch.setattr(asyncio, "timeout", note)
    script = f"sleep 1000 & echo $! > {tmp_path}/child; sleep 1000"
    running = asyncio.create_task(plugin(script, timeout_seconds=600.0).run(cluster={}))
    child = int(await eventually((tmp_path / "child").read_text))
    [(seconds, scope)] = await eventually(lambda: scopes)
    assert seconds == 600
    scope.reschedule(0.0)  # The time-out expires.
    with pytest.raises(KubeconfigError, match="longer than 600 s"):
        await running

    def gone():
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    await eventually(gone)


async def test_failing_plugin_runs_once_for_concurrent_calls(fault_server, tools, plugin, runs, monkeypatch):
    monkeypatch.setattr("kplane.provider.access.credentials._FAILED_SECONDS", 600.0)
    server = await fault_server(refusing(tools, good="none"))
    async with Client(config_of(server, plugin("exit 1"))) as client:
        failures = await asyncio.gather(*(client.get(NAMESPACES, "a") for _ in range(20)), return_exceptions=True)
    assert all(isinstance(failure, KubeconfigError) for failure in failures)
    assert runs() == 1


async def test_missing_plugin_error_has_install_hint():
    missing = ExecPlugin("/no/such/plugin", install_hint="brew install plugin\x1b[31m")
    with pytest.raises(KubeconfigError, match=r"No such file or directory: brew install plugin \[31m"):
        await missing.run(cluster={})


async def test_plugin_secrets_are_not_in_logs_or_repr(fault_server, tools, plugin, caplog):
    caplog.set_level(logging.DEBUG)
    server = await fault_server(refusing(tools, good=SECRET))
    shown = plugin(prints(token=SECRET), args=("--password", SECRET), env={"KEY": SECRET})
    async with Client(config_of(server, shown)) as client:
        await client.get(NAMESPACES, "a")
        assert SECRET not in repr(client.config)
        assert SECRET not in repr(await shown.run(cluster={}))
    assert SECRET not in caplog.text


def kubeconfig(server="https://10.0.0.1", **exec_section):
    return {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [
            {
                "name": "x",
                "cluster": {
                    "server": server,
                    "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}],
                },
            }
        ],
        "users": [{"name": "x", "user": {"exec": {"apiVersion": V1, "command": "get-token", **exec_section}}}],
    }


def test_kubeconfig_with_plugin_is_refused_unless_allowed():
    with pytest.raises(KubeconfigError, match="or trust its author"):
        ClusterConfig.from_kubeconfig(kubeconfig())
    with pytest.raises(KubeconfigError, match="not one of those that are allowed"):
        ClusterConfig.from_kubeconfig(kubeconfig(), exec_plugins={"another"})
    for allowed in (True, {"get-token"}):
        found = ClusterConfig.from_kubeconfig(
            kubeconfig(args=["a"], env=[{"name": "A", "value": "b"}]), exec_plugins=allowed
        )
        assert found.exec_plugin == ExecPlugin("get-token", ("a",), {"A": "b"}, V1, cluster_config={"audience": "a"})
        assert ClusterConfig.from_kubeconfig(found.to_kubeconfig(), exec_plugins=True) == found


def test_plugin_command_with_slash_is_relative_to_kubeconfig(tmp_path):
    document = kubeconfig(command="bin/get-token")
    found = ClusterConfig.from_kubeconfig(document, exec_plugins=True, directory=tmp_path)
    assert found.exec_plugin is not None
    assert found.exec_plugin.command == f"{tmp_path}/bin/get-token"
    with pytest.raises(KubeconfigError, match="absolute path"):
        ClusterConfig.from_kubeconfig(document, exec_plugins=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "known are"),
        ({"command": ""}, "has no command"),
        ({"args": "a"}, "list of texts"),
        ({"args": [1]}, "texts"),
        ({"env": {"A": "b"}}, "list of names and values"),
        ({"env": [{"name": "A=B", "value": "b"}]}, "with '='"),
        ({"interactiveMode": "Always"}, "needs a terminal"),
        ({"interactiveMode": "Sometimes"}, "unknown interactiveMode"),
    ],
)
def test_invalid_plugin_is_refused_when_kubeconfig_is_read(change, sentence):
    with pytest.raises(KubeconfigError, match=sentence):
        ClusterConfig.from_kubeconfig(kubeconfig(**change), exec_plugins=True)


def test_config_with_other_plugin_does_not_continue_the_old_one():
    one, same, other = (
        ClusterConfig("https://10.0.0.1", exec_plugin=ExecPlugin(command)) for command in ("a", "a", "b")
    )
    assert same.continues(one)
    assert hash(same) == hash(one)
    assert not other.continues(one)
    with pytest.raises(KubeconfigError, match="only one of them"):
        ClusterConfig("https://10.0.0.1", exec_plugin=ExecPlugin("a"), token="t")
