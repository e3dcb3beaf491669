"""Steps of a node that joins with `kubeadm join`, as in kubeadm 1.36, at a real API server."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kplane.api.names import ADDON_LABEL
from kplane.controlplane_operator.addons.kubeadm_join import ClusterFacts, join_objects
from kplane.controlplane_operator.tenant.bootstrap import ADMIN_ACCOUNT, TENANT_NAMESPACE
from kplane.controlplane_operator.tenant.revocation import revoke
from kplane.pki.bootstrap_tokens import JoinToken, read_token, token_secret
from kplane.provider import Client, ClusterConfig, NotFound, Resource
from kplane.provider.client.resources import CONFIG_MAPS, PODS, ROLE_BINDINGS, SECRETS, SERVICE_ACCOUNTS
from kplane.provider.errors import Forbidden, Unauthorized
from tests.controlplane_operator.controller_manager import running_controllers

pytestmark = pytest.mark.integration

CSRS = Resource("certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", namespaced=False)
NODES = Resource("v1", "Node", "nodes", namespaced=False)


async def tokens(addons: Any) -> list[JoinToken]:
    secrets = (await addons.client.list(SECRETS, namespace="kube-system")).items
    return [token for token in map(read_token, secrets) if token is not None]


def identity(addons: Any, token: str | None) -> ClusterConfig:
    config = addons.client.config
    return ClusterConfig(server=config.server, ca_data=config.ca_data, token=token)


def signed(data: dict[str, str], token: JoinToken) -> bool:
    """Verify the signature as defined by RFC 7515, without the code that signed."""
    header, middle, signature = data[f"jws-kubeconfig-{token.id}"].split(".")

    def decoded(part: str) -> bytes:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))

    assert middle == ""
    assert json.loads(decoded(header)) == {"alg": "HS256", "kid": token.id}
    payload = base64.urlsafe_b64encode(data["kubeconfig"].encode()).rstrip(b"=")
    expected = hmac.new(token.secret.encode(), header.encode() + b"." + payload, hashlib.sha256).digest()
    return hmac.compare_digest(expected, decoded(signature))


def csr(name: str, *, node: str, key: ec.EllipticCurvePrivateKey | None = None) -> dict[str, Any]:
    """Return the CertificateSigningRequest of a kubelet; without `key`, for a key that is discarded."""
    subject = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
        x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}"),
    ]
    signing = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    signed_request = signing.sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    spec = {
        "request": base64.b64encode(signed_request.public_bytes(serialization.Encoding.PEM)).decode(),
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"],
    }
    return {"metadata": {"name": name}, "spec": spec}


async def test_joining_node_completes_the_steps_of_kubeadm_join(addons: Any, eventually: Any) -> None:
    async with Client(identity(addons, None), field_manager="kplane") as anybody:
        with pytest.raises(Forbidden):
            await anybody.get(CONFIG_MAPS, "cluster-info", namespace="kube-public")
        addons.wanted = ["kubeadm-join"]
        assert await addons.failures() == {}
        (token,) = await tokens(addons)
        assert dt.timedelta(hours=23) < token.expires_at - dt.datetime.now(dt.UTC) <= dt.timedelta(hours=24)
        assert addons.look.until == token.renew_at

        # Discovery needs no credentials. The signature proves that its author knows the token.
        # As in kubeadm, requests are retried: an API server learns of bindings and tokens some milliseconds later.
        config_map = await eventually(lambda: anybody.get(CONFIG_MAPS, "cluster-info", namespace="kube-public"))
        data = config_map["data"]
        assert signed(data, token)
        with pytest.raises((Forbidden, Unauthorized)):
            await anybody.get(CONFIG_MAPS, "kubeadm-config", namespace="kube-system")
        with pytest.raises((Forbidden, Unauthorized)):
            await anybody.list(CONFIG_MAPS, namespace="kube-public")
    (cluster,) = yaml.safe_load(data["kubeconfig"])["clusters"]
    discovered = ClusterConfig(
        server=cluster["cluster"]["server"],
        ca_data=base64.b64decode(cluster["cluster"]["certificate-authority-data"]),
        token=f"{token.id}.{token.secret}",
    )

    # Preflight and kubelet-start authenticate with the token.
    async with Client(discovered, field_manager="kplane") as node:
        config_map = await eventually(lambda: node.get(CONFIG_MAPS, "kubeadm-config", namespace="kube-system"))
        kubeadm = config_map["data"]
        assert yaml.safe_load(kubeadm["ClusterConfiguration"])["kubernetesVersion"] == addons.facts.cluster.version
        config_map = await eventually(lambda: node.get(CONFIG_MAPS, "kubelet-config", namespace="kube-system"))
        kubelet = yaml.safe_load(config_map["data"]["kubelet"])
        assert kubelet["kind"] == "KubeletConfiguration"

        async def is_unknown() -> bool:
            try:
                await node.get(NODES, "worker-1")
            except NotFound:
                return True
            return False

        await eventually(is_unknown)
        request = await eventually(lambda: node.create(CSRS, csr("node-csr-1", node="worker-1")))
        assert request["spec"]["username"] == f"system:bootstrap:{token.id}"
        assert "system:bootstrappers:kubeadm:default-node-token" in request["spec"]["groups"]
        with pytest.raises(Forbidden):
            await node.list(SECRETS)


@pytest.mark.parametrize(("service_range", "bound"), [("10.96.0.0/16", ["kplane:kube-apiserver"]), (None, [])])
def test_kubelet_admin_binding_names_managed_api_servers_only(service_range: str | None, bound: list[str]) -> None:
    facts = ClusterFacts("acme", "https://192.0.2.1:6443", b"ca", "v1.36.3", service_range, None)
    objects = join_objects(facts, tokens=[])
    admins = [binding for binding in objects if binding.get("roleRef", {}).get("name") == "system:kubelet-api-admin"]
    assert [subject["name"] for binding in admins for subject in binding["subjects"]] == bound


async def test_join_objects_are_repaired_rotated_and_removed(addons: Any) -> None:
    addons.wanted = ["kubeadm-join"]
    assert await addons.failures() == {}
    (first,) = await tokens(addons)
    await addons.client.patch(CONFIG_MAPS, "cluster-info", {"data": {"kubeconfig": "evil"}}, namespace="kube-public")
    await addons.client.delete(ROLE_BINDINGS, "kubeadm:kubelet-config", namespace="kube-system")
    ageing = JoinToken(first.id, first.secret, dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(hours=7))
    await addons.client.patch(
        SECRETS, f"bootstrap-token-{first.id}", {"data": token_secret(ageing)["data"]}, namespace="kube-system"
    )
    assert await addons.failures() == {}
    await addons.client.get(ROLE_BINDINGS, "kubeadm:kubelet-config", namespace="kube-system")
    both = await tokens(addons)
    assert len(both) == 2
    assert ageing in both
    data = (await addons.client.get(CONFIG_MAPS, "cluster-info", namespace="kube-public"))["data"]
    assert all(signed(data, token) for token in both)
    assert addons.look.until == ageing.expires_at

    past = JoinToken(first.id, first.secret, dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(hours=1))
    await addons.client.patch(
        SECRETS, f"bootstrap-token-{first.id}", {"data": token_secret(past)["data"]}, namespace="kube-system"
    )
    assert await addons.failures() == {}
    assert [token.id for token in await tokens(addons)] == [token.id for token in both if token.id != first.id]
    data = (await addons.client.get(CONFIG_MAPS, "cluster-info", namespace="kube-public"))["data"]
    assert f"jws-kubeconfig-{first.id}" not in data

    addons.wanted = []
    assert await addons.failures() == {}
    assert await tokens(addons) == []
    for namespace, name in (("kube-public", "cluster-info"), ("kube-system", "kubeadm-config")):
        with pytest.raises(NotFound):
            await addons.client.get(CONFIG_MAPS, name, namespace=namespace)


async def test_revocation_deletes_bootstrap_tokens(addons: Any, eventually: Any) -> None:
    addons.wanted = ["kubeadm-join"]
    assert await addons.failures() == {}
    (token,) = await tokens(addons)
    await revoke(addons.client)
    assert await tokens(addons) == []
    async with Client(identity(addons, f"{token.id}.{token.secret}"), field_manager="kplane") as node:

        async def is_refused() -> bool:
            try:
                await node.get(CONFIG_MAPS, "kubeadm-config", namespace="kube-system")
            except Unauthorized:
                return True
            return False

        await eventually(is_refused)


async def test_existing_kubeadm_config_is_not_overwritten(addons: Any) -> None:
    theirs = {"metadata": {"name": "kubeadm-config", "namespace": "kube-system"}, "data": {"ClusterConfiguration": "x"}}
    await addons.client.create(CONFIG_MAPS, theirs)
    addons.wanted = ["kubeadm-join"]
    failures = await addons.failures()
    assert "ConfigMap kube-system/kubeadm-config exists" in failures["kubeadm-join"].message
    config_map = await addons.client.get(CONFIG_MAPS, "kubeadm-config", namespace="kube-system")
    assert config_map["data"] == {"ClusterConfiguration": "x"}


async def test_bootstrap_signer_of_kubernetes_keeps_our_signatures(
    addons: Any, binaries: Any, tmp_path: Path, eventually: Any
) -> None:
    addons.wanted = ["kubeadm-join"]
    assert await addons.failures() == {}
    before = await addons.client.get(CONFIG_MAPS, "cluster-info", namespace="kube-public")
    controllers = "--controllers=bootstrap-signer-controller,token-cleaner-controller"
    async with running_controllers(addons.client.config, controllers, binaries=binaries, directory=tmp_path):
        mine = JoinToken("mytokn", "0123456789abcdef", dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
        await addons.client.create(SECRETS, token_secret(mine))

        async def data() -> dict[str, str]:
            config_map = await addons.client.get(CONFIG_MAPS, "cluster-info", namespace="kube-public")
            return dict(config_map["data"])

        cluster_info = await eventually(data, lambda data: "jws-kubeconfig-mytokn" in data, timeout=120.0)
        assert signed(cluster_info, mine)
        assert {name: value for name, value in cluster_info.items() if name != "jws-kubeconfig-mytokn"} == before[
            "data"
        ]
        # The add-on leaves signatures of the bootstrap signer unchanged.
        assert await addons.failures() == {}
        assert await data() == cluster_info


async def join(addons: Any, node: str, *, authority: Any, binaries: Any, tmp_path: Path, eventually: Any) -> Any:
    """Exchange a bootstrap token for a kubelet's certificate, approved and signed by Kubernetes' controllers only."""
    (token,) = await tokens(addons)
    files = {name: tmp_path / name for name in ("ca.crt", "ca.key")}
    for file, content in zip(files.values(), (authority.certificate, authority.key), strict=True):
        file.touch(mode=0o600)
        file.write_bytes(content)
    signing = (
        "--controllers=certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller",
        f"--cluster-signing-cert-file={files['ca.crt']}",
        f"--cluster-signing-key-file={files['ca.key']}",
    )
    key = ec.generate_private_key(ec.SECP256R1())
    async with (
        running_controllers(addons.client.config, *signing, binaries=binaries, directory=tmp_path),
        Client(identity(addons, f"{token.id}.{token.secret}"), field_manager="kplane") as joining,
    ):
        await eventually(lambda: joining.create(CSRS, csr(f"csr-{node}", node=node, key=key)))

        async def certificate() -> str | None:
            request = await addons.client.get(CSRS, f"csr-{node}")
            return request.get("status", {}).get("certificate")

        issued = await eventually(certificate, timeout=120.0)
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return ClusterConfig(
        server=addons.client.config.server,
        ca_data=addons.client.config.ca_data,
        client_certificate=base64.b64decode(issued),
        client_key=key.private_bytes(serialization.Encoding.PEM, *private),
    )


def pod(name: str, *, node: str, account: str | None, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "main"}]}
    metadata = {"name": name, "namespace": TENANT_NAMESPACE, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {**spec, **({"serviceAccountName": account} if account is not None else {})}}


async def token_of(kubelet: Client, account: str, *, bound_to: dict[str, Any]) -> dict[str, Any]:
    """Request the token for a pod's volume."""
    metadata = bound_to["metadata"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"boundObjectRef": reference, "expirationSeconds": 3600},
    }
    path = SERVICE_ACCOUNTS.path(account, namespace=TENANT_NAMESPACE, subresource="token")
    response: dict[str, Any] = await kubelet.request("POST", path, body=body)
    return response


async def allowed(**calls: Any) -> list[str]:
    """Return the names of the calls that the API server does not forbid."""
    results = await asyncio.gather(*calls.values(), return_exceptions=True)
    return [name for name, result in zip(calls, results, strict=True) if not isinstance(result, Forbidden)]


async def test_stolen_bootstrap_token_gives_rights_of_a_node_only(
    addons: Any, tenant: Any, binaries: Any, tmp_path: Path, eventually: Any
) -> None:
    addons.wanted = ["kubeadm-join"]
    assert await addons.failures() == {}
    account = ADMIN_ACCOUNT.name
    elsewhere = await addons.client.create(PODS, pod("elsewhere", node="worker-2", account=account))
    await addons.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "shop", "namespace": TENANT_NAMESPACE}})
    authority = tenant.authorities.client
    config = await join(
        addons, "worker-1", authority=authority, binaries=binaries, tmp_path=tmp_path, eventually=eventually
    )
    async with Client(config, field_manager="kplane") as kubelet:
        # A kubelet registers its node, creates mirror pods of its static pods, and runs the pods of its node.
        node = await eventually(lambda: kubelet.create(NODES, {"metadata": {"name": "worker-1"}}))
        owner = {"apiVersion": "v1", "kind": "Node", "name": "worker-1", "uid": node["metadata"]["uid"]}
        mirror = pod("static", node="worker-1", account=None, annotations={"kubernetes.io/config.mirror": "x"})
        mirror["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        await kubelet.create(PODS, mirror)
        scheduled = await addons.client.create(PODS, pod("scheduled", node="worker-1", account="shop"))
        await eventually(lambda: token_of(kubelet, "shop", bound_to=scheduled))

        # A thief would run a pod as the administrator, or claim that such a pod runs on this node.
        mirror["metadata"]["name"] = "mirrored"
        mirror["spec"]["serviceAccountName"] = account
        label = {"metadata": {"labels": {"node-restriction.kubernetes.io/shop": "yes"}}}
        thefts = await allowed(
            pod_of_the_administrator=kubelet.create(PODS, pod("stolen", node="worker-1", account=account)),
            mirror_pod_of_the_administrator=kubelet.create(PODS, mirror),
            token_by_a_pod_elsewhere=token_of(kubelet, account, bound_to=elsewhere),
            token_by_a_pod_of_another=token_of(kubelet, account, bound_to=scheduled),
            label=kubelet.patch(NODES, "worker-1", label),
            secrets=kubelet.list(SECRETS),
        )
        assert thefts == []


async def test_over_50_forged_labelled_secrets_fail_their_addon_only(addons: Any) -> None:
    addons.wanted = ["kubeadm-join", "starter"]
    for number in range(51):
        metadata = {"name": f"forged-{number}", "namespace": "kube-system", "labels": {ADDON_LABEL: "kubeadm-join"}}
        await addons.client.create(SECRETS, {"metadata": metadata})
    failures = await addons.failures()
    assert list(failures) == ["kubeadm-join"]
    assert "too much has the label" in failures["kubeadm-join"].message
