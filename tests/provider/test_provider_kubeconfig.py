"""Kubeconfigs: valid documents, refusals, and secrets that are never shown."""

from __future__ import annotations

import base64
import copy
import dataclasses
import traceback

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from kplane.provider import ClusterConfig
from kplane.provider.errors import KubeconfigError


@pytest.fixture
def document(tools):
    authority = tools.Authority()
    issued = authority.issue("somebody")
    return {
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": "https://10.0.0.1:6443/clusters/x/",
                    "certificate-authority-data": base64.b64encode(authority.pem).decode(),
                },
            }
        ],
        "users": [
            {
                "name": "u",
                "user": {
                    "client-certificate-data": base64.b64encode(issued.certificate).decode(),
                    "client-key-data": base64.b64encode(issued.key).decode(),
                },
            }
        ],
    }


def test_kubeconfig_from_text_bytes_or_document_is_equal(document):
    config = ClusterConfig.from_kubeconfig(document)
    assert config.server == "https://10.0.0.1:6443/clusters/x"
    assert ClusterConfig.from_kubeconfig(yaml.safe_dump(document)) == config
    assert ClusterConfig.from_kubeconfig(yaml.safe_dump(document).encode()) == config
    assert ClusterConfig.from_kubeconfig(config.to_kubeconfig()) == config


def test_kubeconfig_resolves_files_relative_to_itself(document, tmp_path):
    user = document["users"][0]["user"]
    (tmp_path / "tls.crt").write_bytes(base64.b64decode(user.pop("client-certificate-data")))
    (tmp_path / "tls.key").write_bytes(base64.b64decode(user.pop("client-key-data")))
    user |= {"client-certificate": "tls.crt", "client-key": "tls.key"}
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    config = ClusterConfig.load(tmp_path / "config")
    assert config.client_key == (tmp_path / "tls.key").read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"},
        {"client-key": "/etc/shadow", "client-key-data": None},
    ],
)
def test_untrusted_kubeconfig_may_not_name_files(document, change):
    document["users"][0]["user"] |= change
    with pytest.raises(KubeconfigError, match="only inline data"):
        ClusterConfig.from_kubeconfig(document)


@pytest.mark.parametrize(
    ("section", "change", "sentence"),
    [
        ("cluster", {"insecure-skip-tls-verify": True}, "not allowed here"),
        ("cluster", {"proxy-url": "https://proxy"}, "only http proxies"),
        ("cluster", {"proxy-url": "socks5://proxy"}, "only http proxies"),
        ("cluster", {"proxy-url": "http://proxy/path"}, "only have a host"),
        ("cluster", {"server": "http://10.0.0.1"}, "https URL"),
        ("cluster", {"server": "10.0.0.1:6443"}, "https URL"),
        ("cluster", {"server": None}, "https URL"),
        ("cluster", {"server": "https://u:p@10.0.0.1"}, "only have a host"),
        ("cluster", {"server": "https://10.0.0.1/a/../b"}, "plain form"),
        ("cluster", {"server": "https://10.0.0.1:port"}, "is no URL"),
        ("cluster", {"server": ["https://10.0.0.1"]}, "has to be text"),
        ("cluster", {"tls-server-name": "a\0b"}, "is no name of a host"),
        ("cluster", {"tls-server-name": "h\u00f6st"}, "is no name of a host"),
        ("cluster", {"certificate-authority-data": "AAAA"}, "PEM"),
        ("cluster", {"certificate-authority-data": "!"}, "not base64"),
        ("user", {"exec": {"command": "rm"}}, "exec credential plugin that may not run here"),
        ("user", {"username": "a", "password": "b"}, "removed from Kubernetes"),
        ("user", {"auth-provider": {"name": "gcp"}}, "removed from Kubernetes"),
        ("user", {"as-groups": ["system:masters"]}, "needs a user"),
        ("user", {"as": "admin", "as-groups": "system:masters"}, "has to be a list"),
        ("user", {"as": "two\r\nlines"}, "no text that an HTTP header"),
        ("user", {"client-key-data": None}, "needs its key"),
        ("user", {"token": "two\r\nlines"}, "no HTTP header"),
    ],
)
def test_kubeconfig_refusal_names_the_cause(document, section, change, sentence):
    document[f"{section}s"][0][section] |= change
    with pytest.raises(KubeconfigError, match=sentence):
        ClusterConfig.from_kubeconfig(document)


def altered(pem, old, new):
    """Return the certificate with some bytes replaced."""
    der = x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)
    assert old in der
    encoded = base64.encodebytes(der.replace(old, new)).decode()
    return f"-----BEGIN CERTIFICATE-----\n{encoded}-----END CERTIFICATE-----\n".encode()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x0c\x08somebody", b"\x0c\x08some\xff\xfedy"),
        (b"\x0c\x08somebody", b"\x03\x08\0omebody"),
    ],
    ids=["no UTF-8", "bits"],
)
def test_client_certificate_with_invalid_subject_is_refused(document, old, new):
    good = ClusterConfig.from_kubeconfig(document)
    with pytest.raises(KubeconfigError, match="subject of the client certificate cannot be read"):
        dataclasses.replace(good, client_certificate=altered(good.client_certificate, old, new))


@pytest.mark.parametrize("field", ["ca_data", "client_certificate"])
def test_certificate_of_unknown_version_is_refused(document, field):
    good = ClusterConfig.from_kubeconfig(document)
    changed = altered(getattr(good, field), b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09")
    with pytest.raises(KubeconfigError, match="no certificate in PEM form"):
        dataclasses.replace(good, **{field: changed})


@pytest.mark.parametrize("text", ["", "[]", "{", "a: b", "current-context: x", "[" * 3000, b"\xff\xfe\x00"])
def test_invalid_kubeconfig_is_refused(text):
    with pytest.raises(KubeconfigError):
        ClusterConfig.from_kubeconfig(text)


@pytest.mark.parametrize(
    "server",
    ["http://user:secretpw@h", "https://user:secretpw@h", "https://user:secretpw@h/../x", "user:secretpw@h",
     "https://user:secretpw", "https://user:secretpw@h:port", "//user:secretpw@", "https://[user:secretpw@h"],
)  # fmt: skip
def test_password_in_server_url_is_not_shown(document, server):
    document["clusters"][0]["cluster"]["server"] = server
    with pytest.raises(KubeconfigError, match="server") as refused:
        ClusterConfig.from_kubeconfig(document)
    shown = "".join(traceback.format_exception(refused.value))
    assert "secretpw" not in shown.partition("KubeconfigError:")[2]


@pytest.mark.parametrize("command", [["ls"], {"ls": 1}, None, 3])
@pytest.mark.parametrize("allowed", [{"ls"}, frozenset({"ls"}), ["ls"], True])
def test_exec_command_that_is_not_text_is_refused(document, command, allowed):
    document["users"][0]["user"] = {"exec": {"command": command, "apiVersion": "client.authentication.k8s.io/v1"}}
    with pytest.raises(KubeconfigError, match="command"):
        ClusterConfig.from_kubeconfig(document, exec_plugins=allowed)


@pytest.mark.parametrize("mode", [["Never"], {}, {"Never": 1}, 3])
def test_interactive_mode_that_is_not_text_is_refused(document, mode):
    plugin = {"command": "ls", "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": mode}
    document["users"][0]["user"] = {"exec": plugin}
    with pytest.raises(KubeconfigError, match="interactiveMode"):
        ClusterConfig.from_kubeconfig(document, exec_plugins={"ls"})


def test_allowed_plugins_as_text_are_refused(document):
    document["users"][0]["user"] = {"exec": {"command": "aws", "apiVersion": "client.authentication.k8s.io/v1"}}
    with pytest.raises(KubeconfigError, match="give a collection of commands"):
        ClusterConfig.from_kubeconfig(document, exec_plugins="aws-iam-authenticator")


def test_insecure_cluster_config_survives_its_own_kubeconfig(document):
    cluster = document["clusters"][0]["cluster"]
    cluster["insecure-skip-tls-verify"] = True
    with pytest.raises(KubeconfigError, match="give only one of them"):
        ClusterConfig.from_kubeconfig(document, allow_insecure=True)
    del cluster["certificate-authority-data"]
    config = ClusterConfig.from_kubeconfig(document, allow_insecure=True)
    assert config.insecure_skip_tls_verify
    assert ClusterConfig.from_kubeconfig(config.to_kubeconfig(), allow_insecure=True) == config
    assert not config.continues(dataclasses.replace(config, insecure_skip_tls_verify=False))


def with_contexts(document, count):
    """Return the document with `count` contexts, clusters and users with certificates of usual size."""
    pem = base64.b64encode(b"x" * 1100).decode()
    for section, kind in (("contexts", "context"), ("clusters", "cluster"), ("users", "user")):
        (first,) = document[section]
        for number in range(count - 1):
            more = {key: pem if key.endswith("-data") else value for key, value in first[kind].items()}
            document[section].append({"name": f"other-{number}", kind: more})
    return yaml.safe_dump(document)


def test_kubeconfig_above_size_limit_is_refused(document, tmp_path):
    assert ClusterConfig.from_kubeconfig(with_contexts(copy.deepcopy(document), 40)).client_key
    large = with_contexts(document, 200)
    with pytest.raises(KubeconfigError, match="more than 256 KiB; keep only"):
        ClusterConfig.from_kubeconfig(large)
    with pytest.raises(KubeconfigError, match="has too many entries"):
        ClusterConfig.from_kubeconfig("a: 1\n" * 20_000)
    file = tmp_path / "config"
    file.write_text(large)
    assert ClusterConfig.load(file).client_key


@given(st.text() | st.binary())
def test_arbitrary_text_is_read_or_raises_kubeconfig_error(text):
    with pytest.raises(KubeconfigError):
        ClusterConfig.from_kubeconfig(text)


def test_config_continues_after_renewed_but_not_other_credentials(document, tools):
    config = ClusterConfig.from_kubeconfig(document)
    renewed = tools.Authority().issue("somebody")
    same = dataclasses.replace(config, client_certificate=renewed.certificate, client_key=renewed.key)
    other = tools.Authority().issue("somebody-else")
    another = dataclasses.replace(config, client_certificate=other.certificate, client_key=other.key)
    assert same.continues(config)
    for changed in (
        another,
        config.with_server("https://10.0.0.2"),
        dataclasses.replace(config, ca_data=tools.Authority().pem),
        dataclasses.replace(config, ca_data=None),
        dataclasses.replace(config, tls_server_name="x"),
        dataclasses.replace(config, token="t"),
    ):
        assert not changed.continues(config)
        assert not config.continues(changed)
    one, two = (dataclasses.replace(config, token=token) for token in ("t", "u"))
    assert two.continues(one)


def test_config_continues_during_ca_rotation(document, tools):
    old, new = tools.Authority().pem, tools.Authority().pem
    trusting = [
        dataclasses.replace(ClusterConfig.from_kubeconfig(document), ca_data=ca) for ca in (old, new + old, new)
    ]
    assert trusting[1].continues(trusting[0])
    assert trusting[2].continues(trusting[1])
    assert not trusting[2].continues(trusting[0])


def test_credentials_without_own_ca_are_refused_for_other_host(document):
    config = dataclasses.replace(ClusterConfig.from_kubeconfig(document), server="https://host", ca_data=None)
    assert config.with_server("https://host:443/clusters/a/control-plane").ca_data is None
    for elsewhere in ("https://host:6443", "https://evil.example", "https://host.evil.example"):
        with pytest.raises(KubeconfigError, match="no CA of its own"):
            config.with_server(elsewhere)
    pinned = ClusterConfig.from_kubeconfig(document)
    assert pinned.with_server("https://elsewhere").server == "https://elsewhere"


def test_repr_of_config_has_no_secrets(document):
    document = copy.deepcopy(document)
    config = dataclasses.replace(ClusterConfig.from_kubeconfig(document), token="s3cret")
    shown = repr(config)
    assert "10.0.0.1" in shown
    assert "s3cret" not in shown
    assert "PRIVATE" not in shown


def test_in_cluster_config_has_identity_of_pod(tools, tmp_path):
    (tmp_path / "ca.crt").write_bytes(tools.Authority().pem)
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    config = ClusterConfig.in_cluster(directory=tmp_path, environment=environment)
    assert config.server == "https://[fd00::1]:443"
    assert config.token_file == tmp_path / "token"
    with pytest.raises(KubeconfigError, match="not in a pod"):
        ClusterConfig.in_cluster(directory=tmp_path, environment={})


def test_default_config_is_that_of_kubectl(document, tmp_path, monkeypatch):
    """The first of two files counts for each name. Relative paths start at the folder of their file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(KubeconfigError, match=r"there is no kubeconfig at .*/\.kube/config; set KUBECONFIG"):
        ClusterConfig.default(environment={})
    first, second = tmp_path / "first" / "config", tmp_path / "second" / "config"
    for path in (first, second):
        path.parent.mkdir()
    cluster = document["clusters"][0]["cluster"]
    (second.parent / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    others = copy.deepcopy(document)
    others["current-context"] = "other"
    others["contexts"] = [{"name": "other", "context": {"cluster": "d", "user": "u"}}]
    others["clusters"] = [
        {"name": "c", "cluster": {"server": "https://10.0.0.9:6443", "certificate-authority": "ca.crt"}},
        {"name": "d", "cluster": {"server": "https://10.0.0.2:6443", "certificate-authority": "ca.crt"}},
    ]
    others["users"] = []
    first.write_text(yaml.safe_dump(document))
    second.write_text(yaml.safe_dump(others))
    environment = {"KUBECONFIG": f"{first}:{tmp_path}/missing:{second}"}
    assert ClusterConfig.default(environment=environment).server == "https://10.0.0.1:6443/clusters/x"
    found = ClusterConfig.default(context="other", environment=environment)
    assert (found.server, found.client_key) == (
        "https://10.0.0.2:6443",
        ClusterConfig.default(environment=environment).client_key,
    )
    assert found.ca_data == (second.parent / "ca.crt").read_bytes()
    with pytest.raises(KubeconfigError, match="no context 'absent'"):
        ClusterConfig.default(context="absent", environment=environment)
