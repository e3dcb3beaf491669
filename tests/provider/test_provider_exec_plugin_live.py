"""Exec credential plugins against a real API server."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest

from kplane.provider import Client, ClusterConfig
from kplane.provider.access.exec_plugin import ExecPlugin

pytestmark = pytest.mark.integration

V1 = "client.authentication.k8s.io/v1"
SCRIPT = """
import json, os, sys
told = json.loads(os.environ["KUBERNETES_EXEC_INFO"])["spec"]["cluster"]
assert told["server"].startswith("https://") and told["config"] == {"audience": "x"}, told
print(json.dumps({"apiVersion": sys.argv[1], "kind": "ExecCredential", "status": json.loads(os.environ["STATUS"])}))
"""


async def who(config):
    async with Client(config) as client:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        review = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=body)
        return review["status"]["userInfo"]["username"]


def plugin(**status):
    return ExecPlugin(
        sys.executable,
        ("-c", SCRIPT, V1),
        {"STATUS": json.dumps(status)},
        provide_cluster_info=True,
        cluster_config={"audience": "x"},
    )


async def test_api_server_accepts_token_and_certificate_of_plugin(client, namespace, service_account):
    account = await service_account([])
    bare = ClusterConfig(client.config.server, ca_data=client.config.ca_data)
    token = dataclasses.replace(bare, exec_plugin=plugin(token=account.token))
    assert (await who(token)).startswith(f"system:serviceaccount:{namespace}:")
    admin = client.config
    identity = {
        "clientCertificateData": admin.client_certificate.decode(),
        "clientKeyData": admin.client_key.decode(),
    }
    by_certificate = dataclasses.replace(bare, exec_plugin=plugin(**identity))
    assert await who(by_certificate) == await who(admin)
