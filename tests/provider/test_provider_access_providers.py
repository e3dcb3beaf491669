"""Access providers of a configuration file and of ClusterProfiles."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.provider import Client, ClusterConfig, ProviderError
from kplane.provider.errors import KubeconfigError
from kplane.provider.providers.inventory import ClusterInventoryProvider
from kplane.provider.providers.inventory.access import AccessProvider, AccessProviders

EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "plugin", "args": ["login"]}
ARGS = "clusterprofiles.multicluster.x-k8s.io/exec/additional-args"
VARIABLES = "clusterprofiles.multicluster.x-k8s.io/exec/additional-envs"


def offer(name="files", **cluster):
    return {"name": name, "cluster": {"server": f"https://{name}.test", **cluster}}


def profile(*access, old=()):
    return {"status": {"accessProviders": list(access), "credentialProviders": list(old)}}


def test_profile_uses_first_access_provider_configured_and_offered():
    access = AccessProviders([AccessProvider("a", EXEC), AccessProvider("b", {**EXEC, "command": "b"})])
    assert access.config_of(profile(offer("b"), offer("a"))).server == "https://a.test"
    found = access.config_of(profile(offer("c"), offer("b")))
    assert (found.server, found.exec_plugin.command) == ("https://b.test", "b")
    # The older field counts if the newer field has no entry of that name.
    assert access.config_of(profile(offer("b"), old=[offer("a")])).server == "https://a.test"
    both = profile(offer("a", server="https://new.test"), old=[offer("a")])
    assert access.config_of(both).server == "https://new.test"
    with pytest.raises(KubeconfigError, match="its access providers are c, and known here are a, b"):
        access.config_of(profile(offer("c")))


def test_plugin_of_a_profile_gets_cluster_info():
    access = AccessProviders([AccessProvider("files", EXEC)])
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"id": 7}}
    assert access.config_of(profile(offer(extensions=[extension]))).exec_plugin.cluster_config == {"id": 7}


def test_profile_adds_arguments_and_variables_only_if_allowed():
    more = offer(
        extensions=[{"name": ARGS, "extension": ["--now"]}, {"name": VARIABLES, "extension": {"A": "p", "B": "p"}}]
    )
    mine = {**EXEC, "env": [{"name": "A", "value": "mine"}]}

    def plugin(**policies):
        access = AccessProviders([AccessProvider("files", mine, **policies)])
        # The second call shows that the arguments of the first profile do not remain.
        access.config_of(profile(more))
        found = access.config_of(profile(more)).exec_plugin
        return found.args, dict(found.env)

    assert plugin() == (("login",), {"A": "mine"})
    assert plugin(args_policy="Append") == (("login", "--now"), {"A": "mine"})
    assert plugin(env_policy="AppendIfNotExists")[1] == {"A": "mine", "B": "p"}
    assert plugin(env_policy="Replace")[1] == {"A": "p", "B": "p"}


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        ({"server": "http://x.test"}, "https URL"),
        ({"certificate-authority": "/etc/passwd"}, "only inline data"),
        ({"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify"),
        ({"extensions": [{"name": ARGS, "extension": {"a": "b"}}]}, "list of texts"),
        ({"extensions": [{"name": ARGS, "extension": [1]}]}, "list of texts"),
        ({"extensions": [{"name": VARIABLES, "extension": ["A=b"]}]}, "mapping of texts"),
    ],
)
def test_profile_with_forbidden_fields_is_refused(cluster, why):
    access = AccessProviders([AccessProvider("files", EXEC, args_policy="Append", env_policy="Replace")])
    with pytest.raises(KubeconfigError, match=why):
        access.config_of(profile(offer(**cluster)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "cluster", "server", "extensions", "extension"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json_values)
def test_profile_with_arbitrary_status_raises_kubeconfig_error(status):
    access = AccessProviders([AccessProvider("files", EXEC, args_policy="Append", env_policy="Replace")])
    named = {"name": "files", "cluster": status}
    for found in (status, {"status": status}, {"status": {"accessProviders": status}}, profile(named)):
        with pytest.raises(KubeconfigError):
            access.config_of(found if isinstance(found, dict) else {})


def test_access_provider_file_resolves_commands_relative_to_itself(tmp_path):
    path = tmp_path / "access.json"
    entry = {"name": "files", "execConfig": {**EXEC, "command": "./bin/plugin", "args": None, "env": None}}
    path.write_text(json.dumps({"providers": [{**entry, "profileSourcedCLIArgsPolicy": "Append"}]}))
    found = AccessProviders.load(path).config_of(profile(offer()))
    assert found.exec_plugin.command == str(tmp_path / "bin" / "plugin")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "no JSON"),
        ("[]", "no list of access providers"),
        ('{"providers": ["a"]}', "no list of access providers"),
        ('{"providers": []}', "there is no access provider"),
        ('{"providers": [{"execConfig": {}}]}', "has no name"),
        ('{"providers": [{"name": 7}]}', "has no name"),
        ('{"providers": [{"name": "a"}]}', "'a' has no execConfig"),
        ('{"providers": [{"name": "a", "exec": {}}]}', "unknown fields: exec"),
        ('{"providers": [{"name": "a", "execConfig": {"command": ""}}]}', "'a': the exec plugin has no command"),
        (
            '{"providers": [{"name": "a", "execConfig": {}, "profileSourcedCLIArgsPolicy": "Replace"}]}',
            "'Replace' is not known; there are Ignore, Append",
        ),
    ],
)
def test_invalid_access_provider_file_is_refused_with_reason(tmp_path, content, why):
    path = tmp_path / "access.json"
    path.write_text(content)
    with pytest.raises(KubeconfigError, match=why):
        AccessProviders.load(path)
    with pytest.raises(KubeconfigError, match="cannot read"):
        AccessProviders.load(tmp_path / "absent.json")


def test_provider_without_exactly_one_strategy_is_refused():
    """Criterion 49: no strategy, two strategies and an empty strategy are refused."""
    client = Client(ClusterConfig("https://hub.test", token="t"))
    access = AccessProviders([AccessProvider("files", EXEC)])
    with pytest.raises(ProviderError, match="exactly one of access"):
        ClusterInventoryProvider(client)
    with pytest.raises(ProviderError, match="exactly one of access"):
        ClusterInventoryProvider(client, access=access, consumer="me")
    with pytest.raises(KubeconfigError, match="there is no access provider"):
        AccessProviders([])
    with pytest.raises(KubeconfigError, match="is there twice: a, a"):
        AccessProviders([AccessProvider("a", EXEC), AccessProvider("a", EXEC)])
    for consumer in ("", "two words", "a,b", "x" * 64):
        with pytest.raises(ProviderError, match="no value of a label"):
            ClusterInventoryProvider(client, consumer=consumer)
    assert ClusterInventoryProvider(client, access=access).name == "cluster-inventory"
