"""Arguments, environment and files of an instance of kube-controller-manager."""

from __future__ import annotations

import base64
import re
import ssl
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kplane.mcm.describe.certificate import ServingCertificate
from kplane.mcm.describe.controllers import component_name, configure
from kplane.mcm.describe.flags import NO_FLAGS, Flags
from kplane.mcm.describe.kinds import InstanceKind, fingerprint
from kplane.mcm.describe.profiles import CORE, NODELESS
from kplane.mcm.errors import ConfigurationError
from kplane.provider import Cluster, ClusterConfig
from kplane.provider.access.impersonation import Impersonation
from kplane.workloads import Address, Component, Lifetime

SERVING = ServingCertificate.create(host="127.0.0.1")
ADDRESS = Address(host="127.0.0.1", ports={"https": 10257})
CA = SERVING.certificate
KEYS = {"ca.crt": CA, "sa.key": b"sa-secret", "signing-ca.crt": CA, "signing-ca.key": b"signing-secret"}
CLIENT = {"token": None, "client_certificate": CA, "client_key": b"key-secret"}


def describe(
    *,
    credentials: dict[str, bytes] | None = None,
    profile: str = "Core",
    name: str = "a",
    flags: Flags = NO_FLAGS,
    explicit: str = "",
    **config: Any,
) -> Component:
    arguments: dict[str, Any] = {"server": "https://127.0.0.1:6443", "ca_data": CA, "token": "token-secret"}
    cluster = Cluster(
        name,
        config=ClusterConfig(**(arguments | config)),
        credentials=KEYS if credentials is None else credentials,
        attributes={"profile": profile, "controllers": explicit},
    )
    return configure(cluster, address=ADDRESS, serving=SERVING, flags=flags)


def test_arguments_of_an_instance_with_all_keys() -> None:
    component = describe()
    assert component.program == "kube-controller-manager"
    assert sorted(component.args) == [
        "--authentication-kubeconfig=$(FILES)/kubeconfig",
        "--bind-address=127.0.0.1",
        "--cluster-signing-cert-file=$(FILES)/signing-ca.crt",
        "--cluster-signing-key-file=$(FILES)/signing-ca.key",
        "--controllers=" + ",".join(CORE),
        "--flex-volume-plugin-dir=$(DATA)/flexvolumes",
        "--kubeconfig=$(FILES)/kubeconfig",
        "--leader-elect=false",
        "--profiling=false",
        "--root-ca-file=$(FILES)/ca.crt",
        "--secure-port=10257",
        "--service-account-private-key-file=$(FILES)/sa.key",
        "--tls-cert-file=$(FILES)/serving.crt",
        "--tls-private-key-file=$(FILES)/serving.key",
        "--use-service-account-credentials=false",
    ]


@pytest.mark.parametrize("service", InstanceKind)
def test_instance_dies_with_mcm_and_its_log_is_bounded(service: InstanceKind) -> None:
    cluster = Cluster("a", config=ClusterConfig(server="https://127.0.0.1:6443", token="t"))
    component = service.describe(cluster, address=ADDRESS, serving=SERVING, flags=NO_FLAGS, program=service.program)
    assert (component.lifetime, component.only_logs) == (Lifetime.BOUND, True)


@pytest.mark.parametrize("service", InstanceKind)
def test_instance_may_read_files_that_its_flags_name(service: InstanceKind) -> None:
    cluster = Cluster("a", config=ClusterConfig(server="https://127.0.0.1:6443", token="t"))

    def reads(*flags: str) -> tuple[str, ...] | None:
        described = service.describe(
            cluster, address=ADDRESS, serving=SERVING, flags=Flags(flags), program=service.program
        )
        return described.reads

    assert reads() == ()
    assert reads("--v=2", "--cloud-config=/cloud/config", "--other", "/other/file") == ("/cloud/config", "/other/file")


def test_kubeconfig_refers_to_files_beside_it() -> None:
    component = describe(server="https://host:6443/clusters/a/control-plane", tls_server_name="inner")
    kubeconfig = yaml.safe_load(component.files["kubeconfig"].content)
    assert kubeconfig["clusters"][0]["cluster"] == {
        "server": "https://host:6443/clusters/a/control-plane",
        "certificate-authority": "server-ca.crt",
        "tls-server-name": "inner",
    }
    assert kubeconfig["users"][0]["user"] == {"tokenFile": "token"}
    assert component.files["server-ca.crt"].content == CA
    assert component.files["token"].content == b"token-secret"


def test_client_certificate_and_key_are_in_one_reloaded_file() -> None:
    component = describe(**CLIENT)
    user = yaml.safe_load(component.files["kubeconfig"].content)["users"][0]["user"]
    assert user == {"client-certificate": "client.pem", "client-key": "client.pem"}
    assert component.files["client.pem"].content == CA.rstrip() + b"\nkey-secret"
    assert component.files["client.pem"].reloaded


@pytest.mark.parametrize("config", [{}, CLIENT], ids=["token", "certificate"])
def test_secrets_are_in_files_only(config: dict[str, Any]) -> None:
    component = describe(**config)
    public = " ".join([*component.args, *component.env.values(), repr(component)])
    for secret in ("sa-secret", "signing-secret", "token-secret", "key-secret", SERVING.key.decode()):
        assert secret not in public
        assert base64.b64encode(secret.encode()).decode() not in public
        assert secret not in component.files["kubeconfig"].content.decode()


def test_renewed_token_changes_only_a_reloaded_file() -> None:
    before, after = describe(), describe(token="renewed")
    changed_files = {name for name in before.files if before.files[name] != after.files[name]}
    assert changed_files == {"token"}
    assert after.files["token"].reloaded
    assert before.args == after.args


@pytest.mark.parametrize("key", ["ca.crt", "sa.key"])
def test_key_that_is_read_once_is_not_marked_as_reloaded(key: str) -> None:
    assert not describe().files[key].reloaded


def test_server_ca_is_published_if_the_secret_has_no_root_ca() -> None:
    component = describe(credentials={})
    assert component.files["ca.crt"].content == CA
    assert "--root-ca-file=$(FILES)/ca.crt" in component.args


def test_signing_ca_without_its_key_is_ignored() -> None:
    component = describe(credentials={"signing-ca.crt": CA}, profile="Nodeless")
    assert "signing-ca.crt" not in component.files
    assert "certificatesigningrequest-signing-controller" not in " ".join(component.args)


def test_kubeconfig_without_credentials_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"registration a: .* add a token or a client certificate"):
        describe(token=None)


def test_unknown_profile_is_refused_with_a_list_of_profiles() -> None:
    sentence = r"unknown controllers\.profile 'Tiny'; use one of Core, Nodeless, Full"
    with pytest.raises(ConfigurationError, match=sentence):
        describe(profile="Tiny")


def test_serving_certificate_is_its_own_ca_under_strict_rules() -> None:
    client = ssl.create_default_context(cadata=SERVING.certificate.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A handshake in memory, so that OpenSSL verifies the certificate for the address of the probe.
    _load(server, SERVING)
    ends = [ssl.MemoryBIO() for _ in range(2)]
    asking = client.wrap_bio(ends[0], ends[1], server_hostname="127.0.0.1")
    answering = server.wrap_bio(ends[1], ends[0], server_side=True)
    done = {asking: False, answering: False}
    for _ in range(10):
        for end in done:
            try:
                end.do_handshake()
                done[end] = True
            except ssl.SSLWantReadError:
                continue
    assert all(done.values())


def _load(context: ssl.SSLContext, serving: ServingCertificate) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(serving.certificate + serving.key)
        file.flush()
        context.load_cert_chain(file.name)


_NAMES = st.one_of(
    st.sampled_from(["a", "a-b", "aa", "a.b", "a--b", "x" * 55, "x" * 56, "x" * 57, "x" * 253]),
    st.text("abcxyz019-.", min_size=1, max_size=82).map(lambda name: f"a{name}9"),
)


@given(_NAMES, _NAMES)
def test_component_names_are_distinct_dns_labels(one: str, other: str) -> None:
    for name in (one, other):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", component_name(name))
    assert (component_name(one) == component_name(other)) == (one == other)


def controllers_of(component: Component) -> list[str]:
    """Return the value of `--controllers` as a list."""
    arguments = [argument for argument in component.args if argument.startswith("--controllers=")]
    assert len(arguments) == 1
    return arguments[0].partition("=")[2].split(",")


def test_flags_reach_the_process_and_replace_defaults() -> None:
    flags = Flags(("--concurrent-gc-syncs", "5", "--use_service_account_credentials", "--v=2"))
    component = describe(flags=flags)
    at = component.args.index("--concurrent-gc-syncs")
    assert component.args[at : at + 4] == flags.arguments
    assert "--use-service-account-credentials=false" not in component.args
    assert "--profiling=false" in component.args
    assert component.args != describe().args


@pytest.mark.parametrize("flag", ["--profiling", "--profiling=true"])
def test_profiling_flag_enables_heap_profiles(flag: str) -> None:
    assert "memprofilerate=0" in describe().env["GODEBUG"]
    assert "GODEBUG" not in describe(flags=Flags.parse([flag])).env


def test_arguments_of_mcm_come_after_flags() -> None:
    component = describe(flags=Flags(("--cluster-name=a",)))
    assert component.args.index("--cluster-name=a") < component.args.index("--kubeconfig=$(FILES)/kubeconfig")


def test_controllers_of_mcm_run_if_the_registration_has_no_profile() -> None:
    flags = Flags(controllers=("*", "-job-controller", "serviceaccount-token-controller"))
    assert controllers_of(describe(profile="", flags=flags)) == list(flags.controllers)
    assert controllers_of(describe(profile="Core", flags=flags)) == list(CORE)
    assert controllers_of(describe(profile="")) == list(NODELESS)


def test_controller_of_mcm_without_its_keys_is_left_out() -> None:
    flags = Flags(controllers=("*", "serviceaccount-token-controller"))
    controllers = controllers_of(describe(profile="", flags=flags, credentials={"ca.crt": CA}))
    assert controllers[0] == "*"
    assert "serviceaccount-token-controller" not in controllers
    assert "-serviceaccount-token-controller" in controllers


def test_explicit_controllers_of_the_registration_replace_the_flag() -> None:
    flags = Flags(controllers=("*",))
    controllers = controllers_of(describe(profile="", explicit="namespace-controller,-job-controller", flags=flags))
    # Sorted, so that another order restarts nothing.
    assert controllers == ["-job-controller", "namespace-controller"]


def test_readers_authority_is_the_client_ca_of_metrics() -> None:
    cluster = Cluster("a", config=ClusterConfig(server="https://127.0.0.1:6443", ca_data=CA, token="t"))
    component = configure(cluster, address=ADDRESS, serving=SERVING, flags=NO_FLAGS, readers=b"authority")
    assert "--client-ca-file=$(FILES)/readers-ca.crt" in component.args
    assert component.files["readers-ca.crt"].content == b"authority"
    assert not [flag for flag in component.args if flag.startswith("--authorization")]


def test_kubeconfig_keeps_proxy_impersonation_and_server_name() -> None:
    impersonation = Impersonation("controllers", groups=("system:masters",), extra={"reason": ("tests",)})
    component = describe(proxy="http://10.0.0.1:3128", tls_server_name="api.test", impersonation=impersonation)
    files = {name: file.content for name, file in component.files.items()}
    # kube-controller-manager reads the kubeconfig by client-go, with the field names of every kubeconfig.
    document = yaml.safe_load(files["kubeconfig"])
    user = document["users"][0]["user"]
    assert user.pop("tokenFile") == "token"
    user["token"] = files["token"].decode()
    server = document["clusters"][0]["cluster"]
    assert server.pop("certificate-authority") == "server-ca.crt"
    server["certificate-authority-data"] = base64.b64encode(files["server-ca.crt"]).decode()
    assert ClusterConfig.from_kubeconfig(document) == ClusterConfig(
        server="https://127.0.0.1:6443",
        ca_data=CA,
        token="token-secret",
        proxy="http://10.0.0.1:3128",
        tls_server_name="api.test",
        impersonation=impersonation,
    )


def test_fingerprint_changes_only_with_the_configuration() -> None:
    first = describe()
    renewed = describe(token="renewed", credentials=KEYS | {"signing-ca.key": b"renewed"})
    cluster = Cluster("a", config=ClusterConfig(server="https://127.0.0.1:6443", token="t", ca_data=CA))
    elsewhere, here = (
        configure(
            cluster,
            address=Address(host=host, ports={"https": port}),
            serving=ServingCertificate.create(host=host),
            flags=NO_FLAGS,
            readers=readers,
        )
        for host, port, readers in (("127.0.0.1", 1, b"readers"), ("127.0.0.2", 2, b"others"))
    )
    assert fingerprint([first]) == fingerprint([renewed])
    assert fingerprint([elsewhere]) == fingerprint([here])
    others = [describe(profile="Nodeless"), describe(server="https://other:1"), describe(credentials={"sa.key": b"x"})]
    assert len({fingerprint([component]) for component in (first, *others)} | {fingerprint([first, first])}) == 5
