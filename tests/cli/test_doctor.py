"""Findings of `kplane doctor`, by check."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import (
    ControlPlane,
    ControlPlaneClass,
    ControlPlaneEndpoint,
    ControlPlaneRegistration,
    ControlPlaneSnapshot,
)
from kplane.api.names import GATEWAY_NAMESPACE
from kplane.cli.advice import addressed
from kplane.cli.doctor import Finding, Severity, examine, machine
from kplane.cli.doctor.control_planes import check_conditions, check_credentials, check_not_ready
from kplane.cli.doctor.definitions import check_definitions, check_kubernetes, compare
from kplane.cli.doctor.leftovers import check_leftovers
from kplane.cli.doctor.lost_data import check_lost_data
from kplane.cli.doctor.machine import check_clock, check_inotify, check_open_files
from kplane.cli.doctor.programs import (
    check_controllers_credentials,
    check_gateways,
    check_leader,
    check_programs,
    ended,
)
from kplane.cli.doctor.related import check_endpoints, check_registrations, check_snapshots
from kplane.cli.doctor.rights import NEEDED, check_rights, check_unread
from kplane.cli.doctor.survey import KINDS, Survey
from kplane.cli.kubeconfigs import Management
from kplane.cli.programs import Program, Replica
from kplane.cli.programs.processes import Processes
from kplane.embedded.manifests import crd_manifests
from kplane.provider import NotFound, Unreachable
from kplane.provider.client.resources import LEASES
from kplane.provider.errors import Forbidden

OWN = version("kplane")
NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
LONG_AGO = NOW - timedelta(hours=1)


def at(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def condition(kind: str, status: str, reason: str, message: str = "m", *, since: datetime = LONG_AGO) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at(since)}


def control_plane(name: str, *conditions: Any, spec: Any = None, deleted: datetime | None = None, **status: Any) -> Any:
    metadata = {"name": name, "creationTimestamp": at(LONG_AGO)}
    if deleted is not None:
        metadata["deletionTimestamp"] = at(deleted)
    return ControlPlane.model_validate(
        {"metadata": metadata, "spec": spec or {}, "status": {"conditions": conditions, **status}}
    )


def registration(name: str, *conditions: Any, of: str = "acme", services: Sequence[str] = ("Controllers",)) -> Any:
    spec = {"controlPlaneRef": {"name": of}, "services": services}
    status = {"conditions": conditions, "services": services}
    return ControlPlaneRegistration.model_validate({"metadata": {"name": name}, "spec": spec, "status": status})


def endpoint(name: str, *conditions: Any) -> Any:
    return ControlPlaneEndpoint.model_validate(
        {"metadata": {"name": name}, "spec": {}, "status": {"conditions": conditions}}
    )


def survey(client: Any = None, **found: Any) -> Survey:
    return Survey(client=client, looked_at=NOW, **found)


def told(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    return [(str(finding.severity), finding.object, finding.command) for finding in findings]


VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.3"}
ADDONS = condition("AddonsReady", "False", "AddonsFailed")
READY = condition("Ready", "True", "Reconciled")


class Api:
    """Answers requests like an API server. Unknown paths are not found."""

    def __init__(
        self, answers: Mapping[str, Any] | None = None, *, crds: Any = None, leases: Sequence[Any] = ()
    ) -> None:
        self.answers = dict(answers or {})
        self.crds = crds
        self.leases = leases
        self.config = SimpleNamespace(client_certificate=None)

    async def request(self, method: str, path: str, *, body: Any = None) -> Any:
        if path not in self.answers:
            raise NotFound(404, "NotFound", path)
        answer = self.answers[path]
        return answer(body) if callable(answer) else answer

    async def get(self, resource: Any, name: str) -> Any:
        if self.crds is None:
            raise Forbidden(403, "Forbidden", "no")
        return self.crds[name]

    async def list(self, resource: Any, *, namespace: str | None = None, label_selector: str = "") -> Any:
        assert resource is LEASES
        key, _, value = label_selector.partition("=")
        items = [
            item
            for item in self.leases
            if namespace in {None, item["metadata"]["namespace"]}
            and (not key or (key in (labels := item["metadata"]["labels"]) and value in {"", labels[key]}))
        ]
        return SimpleNamespace(items=items)


# Webhooks of tenants


async def test_check_conditions_names_webhooks_on_leases() -> None:
    message = (
        "controllers run by Leases in kube-system, which wait for webhook 'guard.example.com'; exclude kube-system"
    )
    unguarded = condition("LeasesUnguarded", "False", "WebhooksOnLeases", message)
    (finding,) = await check_conditions(survey(control_planes=[control_plane("acme", READY, unguarded)]))
    assert (finding.severity, finding.object) == (Severity.WARNING, "ControlPlane acme")
    assert message in finding.problem
    assert finding.command.startswith("kplane connect acme -- kubectl get validatingwebhookconfigurations")


async def test_check_not_ready_names_command_for_refusing_webhook() -> None:
    message = "setting up the control plane: mend or delete webhook 'deny.example.com'; failed calling webhook"
    not_ready = condition("Ready", "False", "WebhookRefused", message, since=NOW)
    (finding,) = await check_not_ready(survey(control_planes=[control_plane("acme", not_ready)]))
    assert (finding.severity, "wait" in finding.problem) == (Severity.ERROR, False)
    assert "mend or delete webhook 'deny.example.com'" in finding.problem
    assert finding.command.startswith("kplane connect acme -- kubectl get validatingwebhookconfigurations")


async def test_check_registrations_suggests_describe_if_webhook_refuses() -> None:
    """The name of a registration may differ from the name of its control plane."""
    resolved = condition("Ready", "True", "Resolved")
    not_running = condition(
        "Running", "False", "WebhookRefused", "webhook 'guard.example.com' holds up the Lease; mend it"
    )
    (finding,) = await check_registrations(survey(registrations=[registration("other", resolved, not_running)]))
    assert (finding.severity, finding.command) == (Severity.ERROR, "kubectl describe controlplaneregistration other")


# Definitions


SERVED = {"/apis/controlplane.kplane.dev/v1alpha1": {"resources": [{"name": kind.resource.plural} for kind in KINDS]}}


def definitions() -> dict[str, Any]:
    return {crd["metadata"]["name"]: crd for crd in copy.deepcopy(crd_manifests())}


def properties(crd: Any) -> Any:
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


async def test_check_definitions_accepts_crds_of_this_version() -> None:
    assert await check_definitions(survey(Api(SERVED, crds=definitions()))) == []
    # Without permission to read CRDs, the check sees only that the API server serves the kinds.
    assert await check_definitions(survey(Api(SERVED))) == []


async def test_check_definitions_reports_missing_crds() -> None:
    (finding,) = await check_definitions(survey(Api()))
    assert (finding.severity, finding.command) == (Severity.ERROR, "kplane init")
    partial = {next(iter(SERVED)): {"resources": next(iter(SERVED.values()))["resources"][:-1]}}
    (finding,) = await check_definitions(survey(Api(partial)))
    assert (finding.object, finding.command) == (
        "CustomResourceDefinition controlplanesnapshots.controlplane.kplane.dev",
        "kplane upgrade",
    )


def test_compare_reports_crds_of_other_versions() -> None:
    name = "controlplanes.controlplane.kplane.dev"
    current = definitions()[name]
    older, newer, unserved, other = (copy.deepcopy(current) for _ in range(4))
    del properties(older)["spec"]["properties"]["migration"]
    properties(newer)["spec"]["properties"]["future"] = {"type": "string"}
    unserved["spec"]["versions"][0]["served"] = False
    properties(other)["spec"]["x-kubernetes-validations"][0]["rule"] = "true"
    assert compare(current, current, command="mend") is None
    compared = [compare(item, current, command="mend") for item in (older, unserved, newer, other)]
    assert [(item.severity, item.problem[:70], item.command) for item in compared if item is not None] == [
        (Severity.ERROR, "is older than this kplane: it lacks .spec.migration, .spec.migration.p", "mend"),
        (Severity.ERROR, "version v1alpha1 is not served", "mend"),
        (Severity.WARNING, "is newer than this kplane: it also has .spec.future", "pip install --upgrade kplane"),
        (Severity.ERROR, compared[3].problem[:70] if compared[3] is not None else "", "mend"),
    ]
    assert compared[3] is not None
    assert "is of another version" in compared[3].problem


@pytest.mark.parametrize(
    ("program", "command"),
    [("0.0.1", "kplane upgrade"), (OWN, "kplane upgrade"), ("999.0.0", "pip install --upgrade kplane")],
)
async def test_findings_upgrade_the_older_of_cli_and_programs(program: str, command: str) -> None:
    crds = definitions()
    schema = properties(crds["controlplanes.controlplane.kplane.dev"])["spec"]
    schema["x-kubernetes-validations"][0]["rule"] = "true"
    programs = Programs(replica(Program.OPERATOR, version=program), replica(Program.MCM, version=program))
    (finding,) = await check_definitions(survey(Api(SERVED, crds=crds), programs=programs))
    assert finding.command == command
    told_of_programs = await check_programs(survey(programs=programs))
    assert {item.command for item in told_of_programs} == ({command} if program != OWN else set())


async def test_findings_for_local_processes_suggest_restart() -> None:
    programs = Programs(replica(Program.OPERATOR, version="0.0.1"))
    programs.start = programs.upgrade = "kplane down && kplane up"
    partial = {next(iter(SERVED)): {"resources": []}}
    (missing,) = await check_definitions(survey(Api(partial), programs=programs))
    absent, old = await check_programs(survey(programs=programs))
    assert {finding.command for finding in (missing, absent, old)} == {"kplane down && kplane up"}


@pytest.mark.parametrize(("minor", "count"), [("29+", 1), ("30", 0), ("36", 0)])
async def test_check_kubernetes_reports_versions_before_1_30(minor: str, count: int) -> None:
    version = {"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.0"}
    assert len(await check_kubernetes(survey(Api({"/version": version})))) == count


# Programs


class Programs:
    place = "pods in namespace kplane-system"
    namespace: str | None = "kplane-system"
    required = (Program.OPERATOR, Program.MCM)
    start = "kubectl describe deployments"
    upgrade = "kplane upgrade"

    def __init__(self, *replicas: Replica, metrics: str = "") -> None:
        self.found = replicas
        self.metrics = metrics

    async def replicas(self) -> Sequence[Replica]:
        return self.found

    async def ask(self, asked: Replica, path: str) -> str:
        assert (asked.program, path) == (Program.OPERATOR, "/metrics")
        return self.metrics


def replica(program: Program, **more: Any) -> Replica:
    return Replica(**{"program": program, "name": f"{program}-0", "version": OWN, "look": "look"} | more)


async def test_check_programs_reports_missing_stopped_and_old_programs() -> None:
    (finding,) = await check_programs(survey(missing=["ControlPlane"]))
    assert (finding.severity, finding.command) == (Severity.ERROR, "kplane init")
    (finding,) = await check_programs(survey())
    assert (finding.severity, finding.command.split()[:2]) == (Severity.WARNING, ["kubectl", "get"])
    assert "run elsewhere, or not at all" in finding.problem
    assert await check_programs(survey(unread={"Pod": "refused"})) == []
    programs = Programs(
        replica(Program.OPERATOR, problem="its process does not run"),
        replica(Program.GATEWAY, version="0.0.9"),
        replica(Program.ETCD, version=""),
    )
    assert told(await check_programs(survey(programs=programs))) == [
        ("error", "mcm", "kubectl describe deployments"),
        ("error", "operator operator-0", "look"),
        ("warning", "gateway gateway-0", "kplane upgrade"),
    ]
    assert await check_programs(survey(programs=Programs(replica(Program.OPERATOR), replica(Program.MCM)))) == []


async def test_expired_controllers_credentials_are_reported() -> None:
    series = {("acme", "controllers"): -5, ("globex", "controllers"): 5, ("initech", "kubeconfig"): -5}
    metrics = "# TYPE kplane_credentials_expiry_seconds gauge\n" + "".join(
        f'kplane_credentials_expiry_seconds{{control_plane="{name}",secret="{secret}"}} {value}\n'
        for (name, secret), value in series.items()
    )
    programs = Programs(replica(Program.OPERATOR), replica(Program.MCM), metrics=metrics)
    assert told(await check_controllers_credentials(survey(programs=programs))) == [
        ("error", "ControlPlane acme", "kplane describe acme")
    ]
    assert await check_controllers_credentials(survey()) == []


async def test_credentials_check_warns_if_operator_is_unreachable() -> None:
    class Closed(Programs):
        async def ask(self, asked: Replica, path: str) -> str:
            raise Unreachable("no answer in time", kind="timeout")

    (finding,) = await check_controllers_credentials(survey(programs=Closed(replica(Program.OPERATOR))))
    assert told([finding]) == [("warning", "operator operator-0", "look")]
    assert "not checked: no answer in time" in finding.problem
    assert "networkPolicy.metricsFrom" in finding.problem


def lease(name: str, renewed: datetime | None, *, holder: str = "one", gateway: bool = False) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 10, "renewTime": at(renewed)} if renewed else {}
    labels = {"controlplane.kplane.dev/gateway": "true"} if gateway else {"app.kubernetes.io/part-of": "kplane"}
    place = GATEWAY_NAMESPACE if gateway else "kube-system"
    return {"metadata": {"name": name, "namespace": place, "labels": labels}, "spec": spec}


async def test_check_leader_reports_lease_that_is_not_renewed() -> None:
    assert ended(lease("a", NOW), now=NOW) == ""
    assert ended(lease("a", NOW - timedelta(seconds=15)), now=NOW) == ""
    assert ended(lease("a", None), now=NOW) == "it has no holder"
    assert ended(lease("a", NOW + timedelta(days=2)), now=NOW).endswith("which is in the future")
    leases = [lease("kplane-operator", LONG_AGO), lease("other-operator", LONG_AGO)]
    programs = Programs(replica(Program.OPERATOR))
    (finding,) = await check_leader(survey(Api(leases=leases), programs=programs))
    assert finding.object == "Lease kube-system/kplane-operator"
    assert "one renewed it last at 2026-11-26 11:00:00 UTC" in finding.problem
    # The clock of the API server counts. If that clock is an hour behind, the Lease is valid.
    assert await check_leader(survey(Api(leases=leases), programs=programs, ahead=-timedelta(hours=1))) == []


async def test_check_gateways_reports_only_if_no_gateway_renews() -> None:
    def gateways(**renewed: datetime | None) -> Api:
        leases = [lease(name, moment, gateway=True) for name, moment in renewed.items()]
        return Api(leases=[lease("kplane-operator", NOW), *leases])

    assert await check_gateways(survey(gateways())) == []
    # The operator does not wait for gateways that ended. Their Leases remain for a while.
    assert await check_gateways(survey(gateways(one=LONG_AGO, two=NOW))) == []
    (finding,) = await check_gateways(survey(gateways(one=LONG_AGO, two=None)))
    assert (finding.severity, finding.object) == (Severity.WARNING, "Lease kplane-gateway/one, kplane-gateway/two")


# Rights


def reviews(*refused: tuple[str, str], user: str = "jane") -> dict[str, Any]:
    def review(body: Any) -> Any:
        attributes = body["spec"]["resourceAttributes"]
        return {"status": {"allowed": (attributes["verb"], attributes["resource"]) not in refused}}

    return {
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": review,
        "/apis/authentication.k8s.io/v1/selfsubjectreviews": {"status": {"userInfo": {"username": user}}},
    }


async def test_check_rights_suggests_grant_for_missing_rights() -> None:
    assert await check_rights(survey(Api(reviews()))) == []
    api = Api(reviews(("list", "controlplanes"), ("watch", "controlplanes"), ("get", "secrets")))
    essential, secrets = await check_rights(survey(api, control_planes=[control_plane("acme")]))
    assert essential.severity is Severity.ERROR
    assert "jane may not list, watch controlplanes, for: all commands" in essential.problem
    assert essential.command == (
        "kubectl create clusterrole kplane-cli-controlplanes-list --verb=list,watch"
        " --resource=controlplanes.controlplane.kplane.dev && kubectl create clusterrolebinding"
        " kplane-cli-controlplanes-list --clusterrole=kplane-cli-controlplanes-list --user=jane"
    )
    assert secrets.severity is Severity.WARNING
    # The grant never covers Secrets of the whole cluster.
    assert secrets.command == (
        "kubectl create role kplane-cli-secrets-get -n kplane-cp-acme --verb=get --resource=secrets"
        " && kubectl create rolebinding kplane-cli-secrets-get -n kplane-cp-acme --role=kplane-cli-secrets-get"
        " --user=jane"
    )
    (secrets,) = await check_rights(survey(Api(reviews(("get", "secrets"), user="jane doe; rm"))))
    assert "-n kplane-cp-NAME --role=" in secrets.command
    assert secrets.command.endswith("--user='jane doe; rm'")


async def test_check_rights_reviews_each_resource_in_its_namespace() -> None:
    requests = []

    def review(body: Any) -> Any:
        requests.append(body["spec"]["resourceAttributes"])
        return {"status": {"allowed": True}}

    api = Api({"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": review})
    programs = Programs(replica(Program.OPERATOR))
    await check_rights(survey(api, control_planes=[control_plane("acme")], programs=programs))
    assert len(requests) == sum(len(item.verbs) for item in NEEDED)
    assert [item.get("namespace") for item in requests if item["resource"] == "secrets"] == ["kplane-cp-acme"]
    of_pods = {
        (item["subresource"], item["verb"]): item.get("namespace") for item in requests if item["resource"] == "pods"
    }
    assert of_pods == {
        ("", "get"): "kplane-cp-acme",
        ("", "list"): None,
        ("log", "get"): "kplane-system",
        ("portforward", "create"): "kplane-cp-acme",
        ("proxy", "get"): "kplane-system",
    }


async def test_check_unread_reports_kinds_that_could_not_be_read() -> None:
    namespaces, classes = await check_unread(survey(unread={"Namespace": "403: no", "ControlPlaneClass": "no"}))
    assert (namespaces.severity, "403: no" in namespaces.problem) == (Severity.WARNING, True)
    assert [namespaces.command, classes.command] == [
        "kubectl get namespaces -A",
        "kubectl get controlplaneclasses -A",
    ]


# Control planes


async def test_check_not_ready_groups_control_planes_by_reason() -> None:
    missing = condition("Ready", "False", "ClassNotFound", "there is no class small")
    starting = condition("Ready", "False", "Provisioning", "kube-apiserver starts", since=NOW)
    stuck = condition("Ready", "False", "Provisioning", "kube-apiserver starts")
    findings = await check_not_ready(
        survey(
            control_planes=[
                control_plane("well", READY),
                *(control_plane(f"classless-{number}", missing) for number in range(7)),
                control_plane("new", starting),
                control_plane("stuck", stuck),
                control_plane("unseen"),
                control_plane("leaving", deleted=NOW - timedelta(minutes=1)),
                control_plane("held", condition("Deleting", "True", "DeletingData", "etcd is away"), deleted=LONG_AGO),
            ]
        )
    )
    assert told(findings) == [
        (
            "error",
            "ControlPlane classless-0, classless-1, classless-2, classless-3, classless-4 and 2 more",
            "kubectl get controlplaneclasses",
        ),
        ("error", "ControlPlane stuck", "kplane describe stuck"),
        ("error", "ControlPlane unseen", "kubectl get pods -A -l app.kubernetes.io/component=operator"),
        ("error", "ControlPlane held", "kplane describe held"),
    ]
    assert findings[0].problem == (
        "Ready is False (ClassNotFound): there is no class small; create the class, or name another"
    )
    assert "it waits in step DeletingData: etcd is away" in findings[3].problem


async def test_findings_omit_adoption_token_of_retained_data() -> None:
    retained = control_plane("acme", condition("Ready", "False", "DataRetained"))
    retained_namespace = namespace("kplane-cp-acme", of="acme", retained="true", **{"adoption-token": "the-token"})
    (finding,) = await check_not_ready(survey(control_planes=[retained], namespaces=[retained_namespace]))
    (leftover,) = await check_leftovers(survey(namespaces=[retained_namespace]))
    assert leftover.object == "Namespace kplane-cp-acme"
    assert "the-token" not in repr([finding, leftover])
    assert finding.command == (
        'kubectl annotate controlplane acme controlplane.kplane.dev/adopt="$(kubectl get namespace kplane-cp-acme'
        " -o jsonpath='{.metadata.annotations.controlplane\\.kplane\\.dev/adoption-token}')\""
    )


async def test_check_conditions_reports_stuck_namespace() -> None:
    why = "kept awake, because namespace shop is being deleted: Discovery failed"
    stuck = control_plane("acme", READY, condition("Hibernated", "False", "NamespaceStuck", why, since=NOW))
    (finding,) = await check_conditions(survey(control_planes=[stuck]))
    command = "kplane connect acme -- kubectl get namespaces,apiservices"
    assert (finding.severity, finding.object, finding.command) == (Severity.WARNING, "ControlPlane acme", command)
    assert why in finding.problem
    why = "at the beginning of this sleep, namespace shop is being deleted: Discovery failed"
    sleeper = control_plane("initech", READY, condition("Hibernated", "True", "NamespaceStuck", why, since=LONG_AGO))
    (finding,) = await check_conditions(survey(control_planes=[sleeper]))
    assert (finding.severity, finding.command) == (Severity.WARNING, command.replace("acme", "initech"))
    assert why in finding.problem
    job = control_plane("globex", READY, condition("Hibernated", "False", "KeptAwake", "a Job runs"))
    assert await check_conditions(survey(control_planes=[job])) == []


async def test_check_conditions_warns_about_degraded_control_planes() -> None:
    findings = await check_conditions(
        survey(
            control_planes=[
                control_plane("full", READY, condition("StorageSufficient", "False", "StorageQuotaReached")),
                control_plane("moving", READY, condition("Migrating", "True", "Migrating")),
                control_plane("blocked", READY, condition("Migrating", "False", "MigrationBlocked")),
                control_plane("moved", READY, condition("Migrating", "False", "Migrated")),
                control_plane("paused", READY, condition("Paused", "True", "PausedByAnnotation")),
                control_plane("rolling", READY, condition("UpToDate", "False", "RollingOut", since=NOW)),
                control_plane("bare", READY, ADDONS),
                control_plane("asleep", READY, ADDONS, hibernation={"since": at(LONG_AGO), "reason": "Idle"}),
                control_plane("leaving", READY, ADDONS, deleted=NOW),
            ]
        )
    )
    assert told(findings) == [
        ("warning", "ControlPlane full", "kplane describe full"),
        ("warning", "ControlPlane bare", "kplane describe bare"),
        ("warning", "ControlPlane blocked", "kplane move blocked --abort"),
        ("warning", "ControlPlane paused", "kplane resume paused"),
    ]


async def test_check_credentials_reports_expired_and_expiring() -> None:
    short = ControlPlaneClass.model_validate({"metadata": {"name": "short"}, "spec": {"auth": {"lifetime": "10m"}}})

    def ending(name: str, minutes: int, *, class_name: str | None = None) -> Any:
        spec = {"classRef": {"name": class_name}} if class_name else {}
        return control_plane(name, READY, spec=spec, credentialsExpireAt=at(NOW + timedelta(minutes=minutes)))

    findings = await check_credentials(
        survey(
            classes=[short],
            control_planes=[
                ending("over", -1),
                ending("soon", 4),
                ending("short", 4, class_name="short"),
                ending("shorter", 2, class_name="short"),
                ending("fine", 60),
                control_plane("none", READY),
            ],
        )
    )
    assert told(findings) == [
        ("error", "ControlPlane over", "kplane describe over"),
        ("warning", "ControlPlane shorter, soon", "kplane describe soon"),
    ]


# Endpoints, registrations and snapshots


async def test_check_endpoints_reports_invalid_unreachable_and_contested() -> None:
    unreachable = condition("Reachable", "False", "EndpointUnreachable", "connection refused")
    findings = await check_endpoints(
        survey(
            endpoints=[
                endpoint("well", READY, condition("Reachable", "True", "Answered")),
                endpoint("asleep", READY, condition("Reachable", "False", "Hibernated")),
                endpoint("away", READY, unreachable),
                endpoint(
                    "wrong", condition("Ready", "False", "EndpointInvalid"), condition("Reachable", "Unknown", "x")
                ),
                endpoint("contested", READY, condition("Contested", "True", "OwnedByAnotherManager")),
            ]
        )
    )
    assert told(findings) == [
        ("error", "ControlPlaneEndpoint wrong", "kubectl get controlplaneendpoints -o wide"),
        ("error", "ControlPlaneEndpoint away", "kubectl describe controlplaneendpoint away"),
        ("warning", "ControlPlaneEndpoint contested", "kubectl describe controlplaneendpoint contested"),
    ]
    assert "connection refused" in findings[1].problem


async def test_check_registrations_reports_waiting_failed_and_orphaned() -> None:
    ready = condition("Ready", "True", "Resolved")
    sleeping = control_plane("sleeper", READY, hibernation={"since": at(LONG_AGO), "reason": "Idle"})
    findings = await check_registrations(
        survey(
            control_planes=[control_plane("acme", READY), sleeping],
            registrations=[
                registration("well", ready, condition("Running", "True", "InstanceRunning")),
                registration("taken", condition("Ready", "False", "ServiceTaken", "well has it")),
                registration("crashes", ready, condition("Running", "False", "BadFlag", "no such flag", since=NOW)),
                registration("starts", ready, condition("Running", "False", "Starting", since=NOW)),
                registration("sleeps", condition("Ready", "False", "Hibernated"), of="sleeper"),
                registration("nothing", condition("Ready", "False", "ServiceTaken"), services=()),
                registration("lost", of="gone"),
            ],
        )
    )
    assert told(findings) == [
        ("error", "ControlPlaneRegistration taken", "kubectl describe controlplaneregistration taken"),
        ("error", "ControlPlaneRegistration crashes", "kubectl describe controlplaneregistration crashes"),
        ("error", "ControlPlaneRegistration lost", "kplane unregister lost"),
    ]


async def test_check_snapshots_reports_stuck_and_failed_snapshots() -> None:
    def snapshot(name: str, reason: str, *, since: datetime = LONG_AGO) -> Any:
        status = {"conditions": [condition("Ready", "False", reason, since=since)]}
        spec = {"controlPlaneRef": {"name": "acme"}}
        return ControlPlaneSnapshot.model_validate({"metadata": {"name": name}, "spec": spec, "status": status})

    snapshots = [snapshot("a", "NoSnapshotStorage"), snapshot("b", "Saving", since=NOW)]
    (finding,) = await check_snapshots(survey(snapshots=snapshots))
    assert told([finding]) == [
        ("warning", "ControlPlaneSnapshot a", "kplane upgrade --set 'etcd.backup.recipients={age1...}'")
    ]
    assert "[" not in finding.problem
    processes = Programs()
    processes.namespace = None
    (finding,) = await check_snapshots(survey(snapshots=snapshots, programs=processes))
    assert finding.command == "kplane down && kplane up"
    (finding,) = await check_snapshots(survey(snapshots=[snapshot("c", "SnapshotFailed")], programs=processes))
    assert finding.command == "kubectl describe controlplanesnapshot c"


def saved(name: str, *, of: str, uid: str, minutes_ago: int, phase: str = "Completed") -> Any:
    status = {
        "phase": phase,
        "controlPlaneUID": uid,
        "completionTime": at(NOW - timedelta(minutes=minutes_ago)),
    }
    spec = {"controlPlaneRef": {"name": of}}
    return ControlPlaneSnapshot.model_validate({"metadata": {"name": name}, "spec": spec, "status": status})


def lost(name: str, **options: Any) -> Any:
    # The operator's message is longer than a finding of a condition shows.
    not_ready = condition("Ready", "False", "DataLost", f"failed to find the data of the control plane: {'x' * 300}")
    lost_control_plane = control_plane(name, not_ready, **options)
    return lost_control_plane.model_copy(
        update={"metadata": lost_control_plane.metadata.model_copy(update={"uid": f"uid-of-{name}"})}
    )


async def test_lost_data_names_newest_snapshot_and_command_to_accept() -> None:
    observation = survey(
        control_planes=[lost("acme", dataIdentity="5f0c0f6e")],
        snapshots=[
            saved("older", of="acme", uid="uid-of-acme", minutes_ago=90),
            saved("newest", of="acme", uid="uid-of-acme", minutes_ago=60),
            saved("failed", of="acme", uid="uid-of-acme", minutes_ago=10, phase="Failed"),
            saved("predecessor", of="acme", uid="another", minutes_ago=5),
            saved("neighbour", of="other", uid="uid-of-other", minutes_ago=1),
        ],
    )
    # Only the check for lost data reports this control plane.
    assert not await check_not_ready(observation)
    (finding,) = await check_lost_data(observation)
    annotation = "controlplane.kplane.dev/accept-data-loss=5f0c0f6e"
    assert told([finding]) == [
        ("error", "ControlPlane acme", f"kubectl annotate controlplane acme {annotation} --overwrite")
    ]
    assert "newest of 2026-11-26 11:00 UTC" in finding.problem
    assert "kplane backup restore newest acme" in finding.problem


async def test_lost_data_without_identity_is_accepted_by_uid() -> None:
    deleted = lost("gone", deleted=NOW)
    (finding,) = await check_lost_data(survey(control_planes=[lost("acme"), deleted, control_plane("well", READY)]))
    assert finding.command.endswith("accept-data-loss=uid-of-acme --overwrite")
    assert "there is no Completed one" in finding.problem
    (unread,) = await check_lost_data(
        survey(control_planes=[lost("acme")], unread={"ControlPlaneSnapshot": "forbidden"})
    )
    assert "snapshots could not be read: forbidden" in unread.problem


@pytest.mark.parametrize("reason", ["KeysChanged", "KeysUnusable"])
async def test_changed_keys_of_sleeping_control_plane_are_an_error(reason: str) -> None:
    message = (
        "failed to use the keys of the control plane: Secret kplane-cp-acme/control-plane-authorities has another"
        " encryption.key than before; restore the Secret from a backup with the former keys"
    )
    sleeper = control_plane(
        "acme",
        condition("Ready", "False", reason, message, since=NOW),
        condition("Hibernated", "True", "Hibernated"),
        hibernation={"since": at(LONG_AGO), "reason": "Idle"},
    )
    (finding,) = await check_not_ready(survey(control_planes=[sleeper]))
    assert (finding.severity, finding.object) == ("error", "ControlPlane acme")
    assert message in finding.problem
    assert finding.command.startswith("kubectl get controlplane acme -o jsonpath=")


def namespace(name: str, *, of: str | None = None, deleted: bool = False, **annotations: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": {}, "annotations": {}}
    if of is not None:
        metadata["labels"]["controlplane.kplane.dev/name"] = of
    if annotations.pop("retained", None):
        metadata["labels"]["controlplane.kplane.dev/retained"] = "true"
    metadata["annotations"] = {f"controlplane.kplane.dev/{key}": value for key, value in annotations.items()}
    return {"metadata": metadata | ({"deletionTimestamp": at(NOW)} if deleted else {})}


async def test_check_leftovers_reports_namespaces_without_control_plane() -> None:
    namespaces = [
        namespace("default"),
        namespace("kplane-system"),
        namespace("kplane-cp-acme", of="acme", uid="1"),
        namespace("kplane-cp-kept", of="kept", retained="true", mode="Dedicated"),
        namespace("kplane-cp-gone", of="gone", uid="2"),
        namespace("kplane-cp-strange"),
        namespace("kplane-cp-unknown", of="unknown"),
        namespace("kplane-cp-leaving", of="leaving", uid="3", deleted=True),
    ]
    findings = await check_leftovers(survey(control_planes=[control_plane("acme", READY)], namespaces=namespaces))
    assert [(finding.object, finding.command.partition(" && ")[0]) for finding in findings] == [
        ("Namespace kplane-cp-kept", "kplane create kept --mode Dedicated --no-wait"),
        ("Namespace kplane-cp-gone", "kplane create gone --no-wait"),
        ("Namespace kplane-cp-strange", "kubectl delete namespace kplane-cp-strange"),
        ("Namespace kplane-cp-unknown", "kubectl get all,secrets,persistentvolumeclaims -n kplane-cp-unknown"),
    ]
    assert {finding.severity for finding in findings} == {Severity.WARNING}
    # Without a list of control planes, the owner of a namespace is unknown.
    assert await check_leftovers(survey(namespaces=namespaces, unread={"ControlPlane": "no"})) == []
    assert await check_leftovers(survey(namespaces=namespaces, missing=["ControlPlane"])) == []


# Commands


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("kplane describe acme", "kplane describe acme --context o"),
        ("kubectl get pods -A", "kubectl --context o get pods -A"),
        (
            'kplane create acme && kubectl annotate x y="$(kubectl get z)"',
            'kplane create acme --context o && kubectl --context o annotate x y="$(kubectl --context o get z)"',
        ),
        (
            "kplane down --directory d && kplane up --directory d",
            "kplane down --directory d && kplane up --directory d",
        ),
        ("pip install --upgrade kplane", "pip install --upgrade kplane"),
    ],
)
def test_addressed_command_names_examined_cluster(command: str, expected: str) -> None:
    assert addressed(command, cluster=Management("o")) == expected
    assert addressed(command, cluster=Management()) == command
    elsewhere = addressed(command, cluster=Management("o", "/a b"))
    assert elsewhere == expected.replace("kubectl", "KUBECONFIG='/a b' kubectl")


async def test_commands_of_findings_name_the_cluster() -> None:
    sick = control_plane("acme", condition("Ready", "False", "ClassNotFound"))
    examination = await examine(
        survey(Api({"/version": VERSION, **SERVED}), control_planes=[sick], cluster=Management("other"))
    )
    commands = {name: finding.command for name, finding in examination.findings}
    assert commands["not-ready"] == "kubectl --context other get controlplaneclasses"
    assert commands["rights"] == "kplane doctor --context other"


# This machine


@pytest.mark.parametrize(
    ("seconds", "severity", "said"),
    [(1, None, ""), (-5, "warning", "5 s ahead of"), (5, "warning", "5 s behind"), (90, "error", "90 s behind")],
)
async def test_check_clock_grades_difference_by_severity(seconds: int, severity: str | None, said: str) -> None:
    findings = await check_clock(survey(ahead=timedelta(seconds=seconds)))
    assert [str(finding.severity) for finding in findings] == ([severity] if severity else [])
    assert all(said in finding.problem for finding in findings)


@pytest.mark.parametrize(("hard", "count"), [(1024, 1), (4096, 0), (-1, 0)])
async def test_check_open_files_reports_low_hard_limit(monkeypatch: pytest.MonkeyPatch, hard: int, count: int) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, hard))
    assert len(await check_open_files(survey())) == count


@pytest.mark.parametrize(
    ("free", "severity", "said"),
    [(18, None, ""), (17, "warning", "one more awake control plane"), (4, "error", "a gateway that starts again")],
)
async def test_check_inotify_grades_shortage_by_severity(
    monkeypatch: pytest.MonkeyPatch, free: int, severity: str | None, said: str
) -> None:
    command = "sudo sysctl -w fs.inotify.max_user_instances=8192"
    shortage = f"user 0 has 125 of 128 inotify instances in use; raise the limit: {command}"
    monkeypatch.setattr(machine, "inotify_shortage", lambda needed: shortage if needed > free else "")
    findings = await check_inotify(survey(programs=object.__new__(Processes)))
    assert told(findings) == ([(severity, "this machine", command)] if severity else [])
    assert all(said in finding.problem and "125 of 128" in finding.problem for finding in findings)
    assert await check_inotify(survey()) == []


# The whole examination


@pytest.mark.parametrize("failure", [OSError("gone"), ValueError("no number"), KeyError("items")])
async def test_unexpected_error_of_a_check_becomes_warning(failure: Exception) -> None:
    def fail(_: Any) -> Any:
        raise failure

    reviewing = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    examination = await examine(survey(Api({"/version": VERSION, **SERVED, reviewing: fail})))
    (warning,) = [finding for name, finding in examination.findings if name == "rights"]
    assert (warning.severity, warning.object) == (Severity.WARNING, "check rights")
    assert "failed to check: " in warning.problem
    assert str(failure) in warning.problem


async def test_failed_check_becomes_warning_after_errors() -> None:
    class Away(Api):
        async def list(self, resource: Any, **_: Any) -> Any:
            raise Unreachable("no answer", kind="timeout")

    api = Away({"/version": VERSION, **SERVED, **reviews()})
    classless = control_plane("acme", condition("Ready", "False", "ClassNotFound"))
    programs = Programs(replica(Program.OPERATOR), replica(Program.MCM))
    examination = await examine(survey(api, control_planes=[classless], programs=programs))
    assert examination.failed
    first, *rest = examination.findings
    assert (first[0], first[1].object) == ("not-ready", "ControlPlane acme")
    failed_checks = {name for name, finding in rest if finding.problem == "failed to check: no answer"}
    assert failed_checks == {"leader", "gateways"}
    document = examination.to_json()
    assert document["findings"][0] == {
        "check": "not-ready",
        "severity": "error",
        "object": "ControlPlane acme",
        "problem": first[1].problem,
        "command": "kubectl get controlplaneclasses",
    }
    assert "clock" in document["checks"]
