"""The gateway of the chart: a pod with Envoy and the controller."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from kplane.controlplane_operator.gateway_trust import AUTHORITY, CERTIFICATE
from kplane.gateway import envoy_probe
from kplane.gateway.envoy.bootstrap import Layout
from kplane.gateway.settings import Settings

pytestmark = pytest.mark.integration

_ROOT = Path(__file__).parents[2]

INSTALLED = {
    "gateway.enabled": True,
    "gateway.url": "https://api.example.org",
    "gateway.certificateSecret": "gateway-certificate",
}

SCRAPED = {
    "metrics.serviceMonitor.enabled": True,
    "networkPolicy.metricsFrom": [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ],
}


def pod(rendered: Any, name: str = "kplane-gateway") -> dict[str, Any]:
    spec: dict[str, Any] = rendered.one("Deployment", name)["spec"]["template"]["spec"]
    return spec


def containers(rendered: Any, name: str = "kplane-gateway") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the containers of the controller, a sidecar, and of Envoy."""
    (controller,), (envoy,) = pod(rendered, name)["initContainers"], pod(rendered, name)["containers"]
    assert controller["restartPolicy"] == "Always"
    return controller, envoy


def mounts(container: dict[str, Any]) -> set[str]:
    return {mount["name"] for mount in container["volumeMounts"]}


def test_service_monitor_selects_metrics_of_the_controller_only(chart: Any) -> None:
    rendered = chart.render(settings=INSTALLED | SCRAPED)
    monitor = rendered.one("ServiceMonitor", "kplane-gateway")["spec"]
    service = rendered.one("Service", "kplane-gateway-metrics")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert (
        not monitor["selector"]["matchLabels"].items()
        <= rendered.one("Service", "kplane-gateway")["metadata"]["labels"].items()
    )
    (endpoint,), (port,) = monitor["endpoints"], service["spec"]["ports"]
    assert endpoint["port"] == port["name"]
    controller, envoy = containers(rendered)
    assert port["targetPort"] in {container_port["name"] for container_port in controller["ports"]}
    assert port["targetPort"] not in {container_port["name"] for container_port in envoy["ports"]}
    assert service["spec"]["clusterIP"] == "None"
    (public,) = rendered.one("Service", "kplane-gateway")["spec"]["ports"]
    assert public["targetPort"] == "https"


def test_controller_and_envoy_share_ports_paths_and_image(chart: Any, everything_on: Path, tmp_path: Path) -> None:
    controller, envoy = containers(chart.render(everything_on), "my-kplane-gateway")
    program, certificate = tmp_path / "envoy", tmp_path / "certificate"
    program.touch()
    certificate.mkdir()
    places = {"/opt/kplane/bin/envoy": str(program), "/etc/kplane/certificate": str(certificate)}
    flags = []
    for argument in controller["args"]:
        flag, separator, value = argument.partition("=")
        flags.append(f"{flag}{separator}{places.get(value, value)}")
    settings = Settings.parse(flags)
    assert (settings.namespace, settings.log_level) == ("kube-node-lease", "debug")
    assert not settings.run_envoy
    assert settings.kubeconfig is None
    (port,) = envoy["ports"]
    assert port["containerPort"] == settings.serve.port
    assert controller["ports"][0]["containerPort"] == settings.listen.port
    layout = Layout(PurePosixPath(settings.state_dir / "envoy"))
    assert envoy["args"][envoy["args"].index("--config-path") + 1] == str(layout.bootstrap)
    assert envoy["args"][envoy["args"].index("--concurrency") + 1] == "4"
    # The controller runs the same Envoy binary that serves clients.
    assert envoy["image"] == controller["image"]
    assert [envoy["command"][0]] == [path for path in places if path.endswith("envoy")]


def test_envoy_has_no_token_and_no_certificate_volume(chart: Any) -> None:
    rendered = chart.render(settings=INSTALLED)
    controller, envoy = containers(rendered)
    assert pod(rendered)["automountServiceAccountToken"] is False
    assert mounts(envoy) == {"state"}
    assert mounts(controller) == {"state", "certificate", "token"}
    for container in (controller, envoy):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_kubelet_probes_envoy_at_its_own_socket(chart: Any) -> None:
    """A port of the controller would end a serving Envoy while the controller restarts."""
    controller, envoy = containers(chart.render(settings=INSTALLED))
    probe = envoy["livenessProbe"]
    (state,) = [argument for argument in controller["args"] if argument.startswith("--state-dir=")]
    layout = Layout(PurePosixPath(state.partition("=")[2], "envoy"))
    assert probe["exec"]["command"] == ["python", "-P", "-m", envoy_probe.__name__, str(layout.administration)]
    # A busy Envoy has a minute, and the probe ends by itself.
    assert probe["periodSeconds"] * probe["failureThreshold"] == 60
    assert probe["timeoutSeconds"] > envoy_probe._TIMEOUT_SECONDS


def test_controller_gets_the_memory_limit_of_envoy(chart: Any) -> None:
    controller, envoy = containers(chart.render(settings=INSTALLED))
    (reference,) = [variable["valueFrom"]["resourceFieldRef"] for variable in controller["env"]]
    assert reference == {"containerName": envoy["name"], "resource": "limits.memory"}
    assert envoy["resources"]["limits"] == {"memory": "1Gi"}
    assert controller["env"][0]["name"] == f"{Settings.environment_prefix}ENVOY_MEMORY"


def test_gateway_has_two_replicas_and_a_disruption_budget(chart: Any) -> None:
    rendered = chart.render(settings=INSTALLED)
    deployment = rendered.one("Deployment", "kplane-gateway")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    budget = rendered.one("PodDisruptionBudget", "kplane-gateway")["spec"]
    assert budget == {"maxUnavailable": 1, "selector": deployment["selector"]}
    alone = chart.render(settings={**INSTALLED, "gateway.replicas": 1})
    assert "kplane-gateway" not in alone.names("PodDisruptionBudget")


def test_network_policy_opens_only_https_without_metrics_peers(chart: Any) -> None:
    rendered = chart.render(settings=INSTALLED)
    labels = rendered.one("Deployment", "kplane-gateway")["spec"]["selector"]["matchLabels"]
    service = rendered.one("Service", "kplane-gateway")["spec"]
    assert (service["selector"], service["type"]) == (labels, "ClusterIP")
    assert service["ports"] == [{"name": "https", "port": 443, "targetPort": "https"}]
    policy = rendered.one("NetworkPolicy", "kplane-gateway")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"] == [{"ports": [{"port": "https", "protocol": "TCP"}]}]
    prometheus = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    scraped = chart.render(settings={**INSTALLED, "networkPolicy.metricsFrom": [prometheus]})
    (_, metrics) = scraped.one("NetworkPolicy", "kplane-gateway")["spec"]["ingress"]
    assert metrics == {"from": [prometheus], "ports": [{"port": "http", "protocol": "TCP"}]}


def test_operator_mounts_ca_of_certificate_or_of_ca_secret(chart: Any) -> None:
    for settings, secret in (
        (INSTALLED, "gateway-certificate"),
        ({**INSTALLED, "gateway.caSecret": "public"}, "public"),
    ):
        operator = chart.render(settings=settings).one("Deployment", "kplane-operator")["spec"]["template"]["spec"]
        assert "--gateway-url=https://api.example.org" in operator["containers"][0]["args"]
        (volume,) = [candidate["secret"] for candidate in operator["volumes"] if candidate["name"] == "gateway"]
        assert volume["secretName"] == secret
        # Only the gateway needs the key.
        assert volume["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


def test_gateway_without_certificate_serves_the_operators(chart: Any) -> None:
    rendered = chart.render(settings=INSTALLED | {"gateway.certificateSecret": ""})
    (volume,) = [item["secret"] for item in pod(rendered)["volumes"] if item["name"] == "certificate"]
    assert volume["secretName"] == CERTIFICATE
    operator = rendered.one("Deployment", "kplane-operator")["spec"]["template"]["spec"]
    assert "gateway" not in {item["name"] for item in operator["volumes"]}
    assert not [item for item in operator["containers"][0]["args"] if item.startswith("--gateway-ca")]
    assert "gateway" not in {item["name"] for item in operator["containers"][0]["volumeMounts"]}


def test_admission_policy_names_the_issued_certificate_secrets(chart: Any) -> None:
    rendered = chart.render(settings=INSTALLED | {"gateway.certificateSecret": ""})
    policy = rendered.one("ValidatingAdmissionPolicy", "kplane-operator")["spec"]
    variables = {variable["name"]: variable["expression"] for variable in policy["variables"]}
    assert f"request.name in ['{AUTHORITY}', '{CERTIFICATE}']" in variables["isCertificateOfGateway"]
    assert "variables.isCertificateOfGateway" in policy["validations"][0]["expression"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"gateway.enabled": True, "gateway.certificateSecret": "a"}, "gateway.url is empty"),
        ({"gateway.url": "https://a"}, "gateway.caSecret is empty"),
        ({"gateway.url": "https://a/path", "gateway.caSecret": "a"}, "does not match pattern"),
        ({**INSTALLED, "gateway.certificateSecret": "", "gateway.caSecret": "a"}, "gateway.certificateSecret is empty"),
        ({**INSTALLED, "gateway.namespace": "kplane-system"}, "give it another one"),
        ({"gateway.domain": "cp.example.org"}, "gateway.domain is set, and gateway.url is empty"),
        ({**INSTALLED, "gateway.domain": "example.org"}, "api.example.org, is below it"),
        ({**INSTALLED, "gateway.domain": "*.example.org"}, "does not match pattern"),
    ],
)
def test_chart_refuses_invalid_gateway_settings(chart: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(chart.refused, match=says):
        chart.render(settings=settings)


def test_gateway_domain_leaves_objects_of_the_gateway_unchanged(chart: Any) -> None:
    named = chart.render(settings={**INSTALLED, "gateway.domain": "cp.example.org"})
    operator = named.one("Deployment", "kplane-operator")["spec"]["template"]["spec"]["containers"][0]
    assert "--gateway-domain=cp.example.org" in operator["args"]
    without = chart.render(settings=INSTALLED)
    for kind in ("Service", "NetworkPolicy", "Deployment"):
        assert named.one(kind, "kplane-gateway") == without.one(kind, "kplane-gateway")


def test_gateway_is_not_installed_by_default(chart: Any) -> None:
    assert not [item for item in chart.render().manifests if "gateway" in item["metadata"]["name"]]
    settings = {"gateway.url": "https://api.example.org", "gateway.caSecret": "gateway-ca"}
    assert "kplane-gateway" not in chart.render(settings=settings).names("Deployment")


def test_admission_policy_equals_the_manifest_in_deploy_rbac(chart: Any) -> None:
    """`tests/embedded/test_gateway_rights.py` runs the policy of deploy/rbac on an API server."""
    policies = [
        manifest
        for manifest in yaml.safe_load_all((_ROOT / "deploy/rbac/gateway.yaml").read_text())
        if "Policy" in manifest["kind"]
    ]
    rendered = chart.render(settings=INSTALLED)
    for manifest in policies:
        assert rendered.one(manifest["kind"], "kplane-gateway")["spec"] == manifest["spec"]
