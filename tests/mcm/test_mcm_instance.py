"""What an instance of kube-controller-manager is started with."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mcm.errors import ConfigurationError
from mcm.instance import ServingCertificate, component_name, instance_component
from mcm.profiles import Profile, controllers_of
from provider import Cluster, ClusterConfig
from workloads import Address, Component, Lifetime

SERVING = ServingCertificate.create("127.0.0.1")
ADDRESS = Address(host="127.0.0.1", ports={"https": 10257})
CA = SERVING.certificate
KEYS = {"ca.crt": CA, "sa.key": b"sa-secret", "signing-ca.crt": CA, "signing-ca.key": b"signing-secret"}


def cluster(credentials: dict[str, bytes] | None = None, **config: Any) -> Cluster:
    arguments: dict[str, Any] = {"server": "https://127.0.0.1:6443", "ca_data": CA, "token": "token-secret"}
    return Cluster(
        "a", config=ClusterConfig(**(arguments | config)), credentials=KEYS if credentials is None else credentials
    )


def describe(described: Cluster, profile: Profile = Profile.NODELESS) -> Component:
    return instance_component(described, profile=profile, address=ADDRESS, serving=SERVING)


def test_the_kubeconfig_refers_to_files_and_holds_no_secret() -> None:
    component = describe(cluster())
    kubeconfig = yaml.safe_load(component.files["kubeconfig"].content)
    assert kubeconfig["clusters"][0]["cluster"] == {
        "server": "https://127.0.0.1:6443",
        "certificate-authority": "ca.crt",
    }
    assert kubeconfig["users"][0]["user"] == {"tokenFile": "token"}
    assert component.files["token"].content == b"token-secret"


def test_a_client_certificate_and_its_key_change_in_one_step() -> None:
    component = describe(cluster(token=None, client_certificate=CA, client_key=b"key-secret"))
    user = yaml.safe_load(component.files["kubeconfig"].content)["users"][0]["user"]
    assert user == {"client-certificate": "client.pem", "client-key": "client.pem"}
    assert component.files["client.pem"].reloaded


@pytest.mark.parametrize("config", [{}, {"token": None, "client_certificate": CA, "client_key": b"key-secret"}])
def test_secrets_are_in_files_only(config: dict[str, Any]) -> None:
    component = describe(cluster(**config))
    shown = " ".join([*component.args, *component.env.values(), repr(component), repr(cluster(**config))])
    for secret in ("sa-secret", "signing-secret", "token-secret", "key-secret", SERVING.key.decode()):
        assert secret not in shown
        assert base64.b64encode(secret.encode()).decode() not in shown


def test_renewed_credentials_change_files_that_are_read_again_and_nothing_else() -> None:
    before, after = describe(cluster()), describe(cluster(token="renewed"))
    changed = {name for name in before.files if before.files[name] != after.files[name]}
    assert changed == {"token"}
    assert after.files["token"].reloaded
    assert before.args == after.args


def test_it_dies_with_mcm_and_never_elects_a_leader() -> None:
    component = describe(cluster())
    assert component.lifetime is Lifetime.BOUND
    assert "--leader-elect=false" in component.args


def test_controllers_whose_keys_are_missing_are_left_out() -> None:
    arguments = " ".join(describe(cluster({"ca.crt": CA})).args)
    assert "--service-account-private-key-file" not in arguments
    assert "--cluster-signing" not in arguments
    assert "serviceaccount-token-controller" not in arguments
    assert "certificatesigningrequest-signing-controller" not in arguments
    full = controllers_of(Profile.FULL, service_account_key=False, signing_key=True)
    assert full.split(",")[0] == "*"
    assert "-serviceaccount-token-controller" in full


def test_each_profile_has_all_of_the_smaller_one() -> None:
    def names(profile: Profile) -> set[str]:
        return set(controllers_of(profile, service_account_key=True, signing_key=True).split(","))

    assert names(Profile.CORE) < names(Profile.NODELESS)
    assert not any(name.startswith(("node-", "persistentvolume", "pod-garbage")) for name in names(Profile.NODELESS))


def test_a_cluster_without_ca_or_credentials_is_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match="certificate-authority-data"):
        describe(cluster(ca_data=None))
    with pytest.raises(ConfigurationError, match="neither a client certificate nor a token"):
        describe(cluster(token=None))


_NAMES = st.one_of(
    st.sampled_from(["a", "a-b", "aa", "a.b", "a--b", "x" * 55, "x" * 56, "x" * 253]),
    st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,80}[a-z0-9])?", fullmatch=True),
)


@given(_NAMES, _NAMES)
def test_component_names_are_labels_and_distinct(one: str, other: str) -> None:
    for name in (one, other):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", component_name(name))
    assert (component_name(one) == component_name(other)) == (one == other)
