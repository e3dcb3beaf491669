"""What the doctor finds, by what it looks at."""

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
    return [(str(each.severity), each.object, each.command) for each in findings]


VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.3"}
ADDONS = condition("AddonsReady", "False", "AddonsFailed")
READY = condition("Ready", "True", "Reconciled")


class Api:
    """Answers requests as an API server does. A path that it does not have is not found."""

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
            each
            for each in self.leases
            if namespace in {None, each["metadata"]["namespace"]}
            and (not key or (key in (labels := each["metadata"]["labels"]) and value in {"", labels[key]}))
        ]
        return SimpleNamespace(items=items)


# Webhooks of tenants


async def test_check_conditions_names_webhooks_on_leases() -> None:
    said = "controllers run by Leases in kube-system, which wait for webhook 'guard.example.com'; exclude kube-system"
    unguarded = condition("LeasesUnguarded", "False", "WebhooksOnLeases", said)
    (found,) = await check_conditions(survey(control_planes=[control_plane("acme", READY, unguarded)]))
    assert (found.severity, found.object) == (Severity.WARNING, "ControlPlane acme")
    assert said in found.problem
    assert found.command.startswith("kplane connect acme -- kubectl get validatingwebhookconfigurations")


async def test_check_not_ready_says_what_to_do_about_a_webhook_and_not_to_wait() -> None:
    said = "setting up the control plane: mend or delete webhook 'deny.example.com'; failed calling webhook"
    refused = condition("Ready", "False", "WebhookRefused", said, since=NOW)
    (found,) = await check_not_ready(survey(control_planes=[control_plane("acme", refused)]))
    assert (found.severity, "wait" in found.problem) == (Severity.ERROR, False)
    assert "mend or delete webhook 'deny.example.com'" in found.problem
    assert found.command.startswith("kplane connect acme -- kubectl get validatingwebhookconfigurations")


async def test_check_registrations_of_a_webhook_describes_the_registration() -> None:
    """Its name need not be that of its control plane."""
    resolved = condition("Ready", "True", "Resolved")
    refused = condition("Running", "False", "WebhookRefused", "webhook 'guard.example.com' holds up the Lease; mend it")
    (found,) = await check_registrations(survey(registrations=[registration("other", resolved, refused)]))
    assert (found.severity, found.command) == (Severity.ERROR, "kubectl describe controlplaneregistration other")


# Definitions


SERVED = {"/apis/controlplane.kplane.dev/v1alpha1": {"resources": [{"name": kind.resource.plural} for kind in KINDS]}}


def definitions() -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in copy.deepcopy(crd_manifests())}


def properties(crd: Any) -> Any:
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


async def test_definitions_of_this_version_are_fine() -> None:
    assert await check_definitions(survey(Api(SERVED, crds=definitions()))) == []
    # A user who may not read them learns no more than that they are served.
    assert await check_definitions(survey(Api(SERVED))) == []


async def test_definitions_that_are_missing() -> None:
    (found,) = await check_definitions(survey(Api()))
    assert (found.severity, found.command) == (Severity.ERROR, "kplane init")
    some = {next(iter(SERVED)): {"resources": next(iter(SERVED.values()))["resources"][:-1]}}
    (found,) = await check_definitions(survey(Api(some)))
    assert (found.object, found.command) == (
        "CustomResourceDefinition controlplanesnapshots.controlplane.kplane.dev",
        "kplane upgrade",
    )


def test_definitions_of_other_versions() -> None:
    name = "controlplanes.controlplane.kplane.dev"
    ours = definitions()[name]
    older, newer, unserved, other = (copy.deepcopy(ours) for _ in range(4))
    del properties(older)["spec"]["properties"]["migration"]
    properties(newer)["spec"]["properties"]["future"] = {"type": "string"}
    unserved["spec"]["versions"][0]["served"] = False
    properties(other)["spec"]["x-kubernetes-validations"][0]["rule"] = "true"
    assert compare(ours, ours, command="mend") is None
    compared = [compare(each, ours, command="mend") for each in (older, unserved, newer, other)]
    assert [(each.severity, each.problem[:70], each.command) for each in compared if each is not None] == [
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
async def test_the_older_of_two_versions_is_changed(program: str, command: str) -> None:
    crds = definitions()
    changed = properties(crds["controlplanes.controlplane.kplane.dev"])["spec"]
    changed["x-kubernetes-validations"][0]["rule"] = "true"
    programs = Programs(replica(Program.OPERATOR, version=program), replica(Program.MCM, version=program))
    (found,) = await check_definitions(survey(Api(SERVED, crds=crds), programs=programs))
    assert found.command == command
    told_of_programs = await check_programs(survey(programs=programs))
    assert {each.command for each in told_of_programs} == ({command} if program != OWN else set())


async def test_processes_are_not_upgraded_by_a_chart() -> None:
    programs = Programs(replica(Program.OPERATOR, version="0.0.1"))
    programs.start = programs.upgrade = "kplane down && kplane up"
    some = {next(iter(SERVED)): {"resources": []}}
    (missing,) = await check_definitions(survey(Api(some), programs=programs))
    absent, old = await check_programs(survey(programs=programs))
    assert {each.command for each in (missing, absent, old)} == {"kplane down && kplane up"}


@pytest.mark.parametrize(("minor", "count"), [("29+", 1), ("30", 0), ("36", 0)])
async def test_an_old_management_cluster(minor: str, count: int) -> None:
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


async def test_programs_that_do_not_run() -> None:
    (found,) = await check_programs(survey(missing=["ControlPlane"]))
    assert (found.severity, found.command) == (Severity.ERROR, "kplane init")
    (found,) = await check_programs(survey())
    assert (found.severity, found.command.split()[:2]) == (Severity.WARNING, ["kubectl", "get"])
    assert "run elsewhere, or not at all" in found.problem
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


async def test_credentials_of_controllers_that_ended_are_told_by_the_operator() -> None:
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


async def test_credentials_of_controllers_are_not_checked_if_the_operator_cannot_be_asked() -> None:
    class Closed(Programs):
        async def ask(self, asked: Replica, path: str) -> str:
            raise Unreachable("no answer in time", kind="timeout")

    (found,) = await check_controllers_credentials(survey(programs=Closed(replica(Program.OPERATOR))))
    assert told([found]) == [("warning", "operator operator-0", "look")]
    assert "not checked: no answer in time" in found.problem
    assert "networkPolicy.metricsFrom" in found.problem


def lease(name: str, renewed: datetime | None, *, holder: str = "one", gateway: bool = False) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 10, "renewTime": at(renewed)} if renewed else {}
    own = {"controlplane.kplane.dev/gateway": "true"} if gateway else {"app.kubernetes.io/part-of": "kplane"}
    place = GATEWAY_NAMESPACE if gateway else "kube-system"
    return {"metadata": {"name": name, "namespace": place, "labels": own}, "spec": spec}


async def test_leases_that_are_not_renewed() -> None:
    assert ended(lease("a", NOW), now=NOW) == ""
    assert ended(lease("a", NOW - timedelta(seconds=15)), now=NOW) == ""
    assert ended(lease("a", None), now=NOW) == "it has no holder"
    assert ended(lease("a", NOW + timedelta(days=2)), now=NOW).endswith("which is in the future")
    leases = [lease("kplane-operator", LONG_AGO), lease("other-operator", LONG_AGO)]
    programs = Programs(replica(Program.OPERATOR))
    (found,) = await check_leader(survey(Api(leases=leases), programs=programs))
    assert found.object == "Lease kube-system/kplane-operator"
    assert "one renewed it last at 2026-11-26 11:00:00 UTC" in found.problem
    # The clock of the API server counts: with it an hour behind, nothing is wrong.
    assert await check_leader(survey(Api(leases=leases), programs=programs, ahead=-timedelta(hours=1))) == []


async def test_gateways_are_missed_only_if_none_is_left() -> None:
    def gateways(**renewed: datetime | None) -> Api:
        found = [lease(name, moment, gateway=True) for name, moment in renewed.items()]
        return Api(leases=[lease("kplane-operator", NOW), *found])

    assert await check_gateways(survey(gateways())) == []
    # The operator waits for none of those that ended, and their Leases stay for a while.
    assert await check_gateways(survey(gateways(one=LONG_AGO, two=NOW))) == []
    (found,) = await check_gateways(survey(gateways(one=LONG_AGO, two=None)))
    assert (found.severity, found.object) == (Severity.WARNING, "Lease kplane-gateway/one, kplane-gateway/two")


# Rights


def reviews(*refused: tuple[str, str], user: str = "jane") -> dict[str, Any]:
    def review(body: Any) -> Any:
        attributes = body["spec"]["resourceAttributes"]
        return {"status": {"allowed": (attributes["verb"], attributes["resource"]) not in refused}}

    return {
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": review,
        "/apis/authentication.k8s.io/v1/selfsubjectreviews": {"status": {"userInfo": {"username": user}}},
    }


async def test_rights_that_are_missing_come_with_a_grant() -> None:
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
    # Never those of the whole cluster.
    assert secrets.command == (
        "kubectl create role kplane-cli-secrets-get -n kplane-cp-acme --verb=get --resource=secrets"
        " && kubectl create rolebinding kplane-cli-secrets-get -n kplane-cp-acme --role=kplane-cli-secrets-get"
        " --user=jane"
    )
    (secrets,) = await check_rights(survey(Api(reviews(("get", "secrets"), user="jane doe; rm"))))
    assert "-n kplane-cp-NAME --role=" in secrets.command
    assert secrets.command.endswith("--user='jane doe; rm'")


async def test_secrets_are_asked_for_where_they_are() -> None:
    asked = []

    def review(body: Any) -> Any:
        asked.append(body["spec"]["resourceAttributes"])
        return {"status": {"allowed": True}}

    api = Api({"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": review})
    programs = Programs(replica(Program.OPERATOR))
    await check_rights(survey(api, control_planes=[control_plane("acme")], programs=programs))
    assert len(asked) == sum(len(each.verbs) for each in NEEDED)
    assert [each.get("namespace") for each in asked if each["resource"] == "secrets"] == ["kplane-cp-acme"]
    of_pods = {
        (each["subresource"], each["verb"]): each.get("namespace") for each in asked if each["resource"] == "pods"
    }
    assert of_pods == {
        ("", "get"): "kplane-cp-acme",
        ("", "list"): None,
        ("log", "get"): "kplane-system",
        ("portforward", "create"): "kplane-cp-acme",
        ("proxy", "get"): "kplane-system",
    }


async def test_what_could_not_be_read_was_not_checked() -> None:
    found, classes = await check_unread(survey(unread={"Namespace": "403: no", "ControlPlaneClass": "no"}))
    assert (found.severity, "403: no" in found.problem) == (Severity.WARNING, True)
    assert [found.command, classes.command] == [
        "kubectl get namespaces -A",
        "kubectl get controlplaneclasses -A",
    ]


# Control planes


async def test_control_planes_that_are_not_ready_are_grouped_by_reason() -> None:
    missing = condition("Ready", "False", "ClassNotFound", "there is no class small")
    starting = condition("Ready", "False", "Provisioning", "kube-apiserver starts", since=NOW)
    stuck = condition("Ready", "False", "Provisioning", "kube-apiserver starts")
    found = await check_not_ready(
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
    assert told(found) == [
        (
            "error",
            "ControlPlane classless-0, classless-1, classless-2, classless-3, classless-4 and 2 more",
            "kubectl get controlplaneclasses",
        ),
        ("error", "ControlPlane stuck", "kplane describe stuck"),
        ("error", "ControlPlane unseen", "kubectl get pods -A -l app.kubernetes.io/component=operator"),
        ("error", "ControlPlane held", "kplane describe held"),
    ]
    assert found[0].problem == (
        "Ready is False (ClassNotFound): there is no class small; create the class, or name another"
    )
    assert "it waits in step DeletingData: etcd is away" in found[3].problem


async def test_the_token_of_retained_data_is_in_no_finding() -> None:
    retained = control_plane("acme", condition("Ready", "False", "DataRetained"))
    kept = namespace("kplane-cp-acme", of="acme", retained="true", **{"adoption-token": "the-token"})
    (found,) = await check_not_ready(survey(control_planes=[retained], namespaces=[kept]))
    (left,) = await check_leftovers(survey(namespaces=[kept]))
    assert left.object == "Namespace kplane-cp-acme"
    assert "the-token" not in repr([found, left])
    assert found.command == (
        'kubectl annotate controlplane acme controlplane.kplane.dev/adopt="$(kubectl get namespace kplane-cp-acme'
        " -o jsonpath='{.metadata.annotations.controlplane\\.kplane\\.dev/adoption-token}')\""
    )


async def test_stuck_namespace_that_keeps_a_control_plane_awake_is_found() -> None:
    why = "kept awake, because namespace shop is being deleted: Discovery failed"
    stuck = control_plane("acme", READY, condition("Hibernated", "False", "NamespaceStuck", why, since=NOW))
    (found,) = await check_conditions(survey(control_planes=[stuck]))
    command = "kplane connect acme -- kubectl get namespaces,apiservices"
    assert (found.severity, found.object, found.command) == (Severity.WARNING, "ControlPlane acme", command)
    assert why in found.problem
    job = control_plane("globex", READY, condition("Hibernated", "False", "KeptAwake", "a Job runs"))
    assert await check_conditions(survey(control_planes=[job])) == []


async def test_what_is_not_as_asked_for_is_a_warning() -> None:
    found = await check_conditions(
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
    assert told(found) == [
        ("warning", "ControlPlane full", "kplane describe full"),
        ("warning", "ControlPlane bare", "kplane describe bare"),
        ("warning", "ControlPlane blocked", "kplane move blocked --abort"),
        ("warning", "ControlPlane paused", "kplane resume paused"),
    ]


async def test_credentials_that_end() -> None:
    short = ControlPlaneClass.model_validate({"metadata": {"name": "short"}, "spec": {"auth": {"lifetime": "10m"}}})

    def ending(name: str, minutes: int, *, class_name: str | None = None) -> Any:
        spec = {"classRef": {"name": class_name}} if class_name else {}
        return control_plane(name, READY, spec=spec, credentialsExpireAt=at(NOW + timedelta(minutes=minutes)))

    found = await check_credentials(
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
    assert told(found) == [
        ("error", "ControlPlane over", "kplane describe over"),
        ("warning", "ControlPlane shorter, soon", "kplane describe soon"),
    ]


# What is beside control planes


async def test_endpoints_that_do_not_answer() -> None:
    refused = condition("Reachable", "False", "EndpointUnreachable", "connection refused")
    found = await check_endpoints(
        survey(
            endpoints=[
                endpoint("well", READY, condition("Reachable", "True", "Answered")),
                endpoint("asleep", READY, condition("Reachable", "False", "Hibernated")),
                endpoint("away", READY, refused),
                endpoint(
                    "wrong", condition("Ready", "False", "EndpointInvalid"), condition("Reachable", "Unknown", "x")
                ),
                endpoint("contested", READY, condition("Contested", "True", "OwnedByAnotherManager")),
            ]
        )
    )
    assert told(found) == [
        ("error", "ControlPlaneEndpoint wrong", "kubectl get controlplaneendpoints -o wide"),
        ("error", "ControlPlaneEndpoint away", "kubectl describe controlplaneendpoint away"),
        ("warning", "ControlPlaneEndpoint contested", "kubectl describe controlplaneendpoint contested"),
    ]
    assert "connection refused" in found[1].problem


async def test_registrations_that_wait_or_do_not_run() -> None:
    ready = condition("Ready", "True", "Resolved")
    sleeping = control_plane("sleeper", READY, hibernation={"since": at(LONG_AGO), "reason": "Idle"})
    found = await check_registrations(
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
    assert told(found) == [
        ("error", "ControlPlaneRegistration taken", "kubectl describe controlplaneregistration taken"),
        ("error", "ControlPlaneRegistration crashes", "kubectl describe controlplaneregistration crashes"),
        ("error", "ControlPlaneRegistration lost", "kplane unregister lost"),
    ]


async def test_snapshots_that_are_not_made() -> None:
    def snapshot(name: str, reason: str, *, since: datetime = LONG_AGO) -> Any:
        status = {"conditions": [condition("Ready", "False", reason, since=since)]}
        spec = {"controlPlaneRef": {"name": "acme"}}
        return ControlPlaneSnapshot.model_validate({"metadata": {"name": name}, "spec": spec, "status": status})

    snapshots = [snapshot("a", "NoSnapshotStorage"), snapshot("b", "Saving", since=NOW)]
    (found,) = await check_snapshots(survey(snapshots=snapshots))
    assert told([found]) == [
        ("warning", "ControlPlaneSnapshot a", "kplane upgrade --set 'etcd.backup.recipients={age1...}'")
    ]
    assert "[" not in found.problem
    processes = Programs()
    processes.namespace = None
    (found,) = await check_snapshots(survey(snapshots=snapshots, programs=processes))
    assert found.command == "kplane down && kplane up"
    (found,) = await check_snapshots(survey(snapshots=[snapshot("c", "SnapshotFailed")], programs=processes))
    assert found.command == "kubectl describe controlplanesnapshot c"


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
    told = condition("Ready", "False", "DataLost", f"failed to find the data of the control plane: {'x' * 300}")
    found = control_plane(name, told, **options)
    return found.model_copy(update={"metadata": found.metadata.model_copy(update={"uid": f"uid-of-{name}"})})


async def test_lost_data_names_newest_snapshot_and_command_to_accept() -> None:
    looked = survey(
        control_planes=[lost("acme", dataIdentity="5f0c0f6e")],
        snapshots=[
            saved("older", of="acme", uid="uid-of-acme", minutes_ago=90),
            saved("newest", of="acme", uid="uid-of-acme", minutes_ago=60),
            saved("failed", of="acme", uid="uid-of-acme", minutes_ago=10, phase="Failed"),
            saved("predecessor", of="acme", uid="another", minutes_ago=5),
            saved("neighbour", of="other", uid="uid-of-other", minutes_ago=1),
        ],
    )
    # One finding, by the check of its own alone.
    assert not await check_not_ready(looked)
    (found,) = await check_lost_data(looked)
    annotation = "controlplane.kplane.dev/accept-data-loss=5f0c0f6e"
    assert told([found]) == [
        ("error", "ControlPlane acme", f"kubectl annotate controlplane acme {annotation} --overwrite")
    ]
    assert "newest of 2026-11-26 11:00 UTC" in found.problem
    assert "kplane backup restore newest acme" in found.problem


async def test_lost_data_without_identity_or_snapshot_are_accepted_by_uid() -> None:
    deleted = lost("gone", deleted=NOW)
    (found,) = await check_lost_data(survey(control_planes=[lost("acme"), deleted, control_plane("well", READY)]))
    assert found.command.endswith("accept-data-loss=uid-of-acme --overwrite")
    assert "there is no Completed one" in found.problem
    (unread,) = await check_lost_data(
        survey(control_planes=[lost("acme")], unread={"ControlPlaneSnapshot": "forbidden"})
    )
    assert "snapshots could not be read: forbidden" in unread.problem


@pytest.mark.parametrize("reason", ["KeysChanged", "KeysUnusable"])
async def test_other_keys_are_found_with_their_entry_when_the_control_plane_sleeps(reason: str) -> None:
    message = (
        "failed to use the keys of the control plane: Secret kplane-cp-acme/control-plane-authorities has another"
        " encryption.key than before; restore the Secret from a backup with the former keys"
    )
    asleep = control_plane(
        "acme",
        condition("Ready", "False", reason, message, since=NOW),
        condition("Hibernated", "True", "Hibernated"),
        hibernation={"since": at(LONG_AGO), "reason": "Idle"},
    )
    (found,) = await check_not_ready(survey(control_planes=[asleep]))
    assert (found.severity, found.object) == ("error", "ControlPlane acme")
    assert message in found.problem
    assert found.command.startswith("kubectl get controlplane acme -o jsonpath=")


def namespace(name: str, *, of: str | None = None, deleted: bool = False, **annotations: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": {}, "annotations": {}}
    if of is not None:
        metadata["labels"]["controlplane.kplane.dev/name"] = of
    if annotations.pop("retained", None):
        metadata["labels"]["controlplane.kplane.dev/retained"] = "true"
    metadata["annotations"] = {f"controlplane.kplane.dev/{key}": value for key, value in annotations.items()}
    return {"metadata": metadata | ({"deletionTimestamp": at(NOW)} if deleted else {})}


async def test_what_is_left_of_control_planes_that_are_gone() -> None:
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
    found = await check_leftovers(survey(control_planes=[control_plane("acme", READY)], namespaces=namespaces))
    assert [(each.object, each.command.partition(" && ")[0]) for each in found] == [
        ("Namespace kplane-cp-kept", "kplane create kept --mode Dedicated --no-wait"),
        ("Namespace kplane-cp-gone", "kplane create gone --no-wait"),
        ("Namespace kplane-cp-strange", "kubectl delete namespace kplane-cp-strange"),
        ("Namespace kplane-cp-unknown", "kubectl get all,secrets,persistentvolumeclaims -n kplane-cp-unknown"),
    ]
    assert {each.severity for each in found} == {Severity.WARNING}
    # Which of them have a control plane is not known then.
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
def test_commands_name_the_cluster_that_was_examined(command: str, expected: str) -> None:
    assert addressed(command, cluster=Management("o")) == expected
    assert addressed(command, cluster=Management()) == command
    elsewhere = addressed(command, cluster=Management("o", "/a b"))
    assert elsewhere == expected.replace("kubectl", "KUBECONFIG='/a b' kubectl")


async def test_all_findings_name_the_cluster() -> None:
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
async def test_the_clock(seconds: int, severity: str | None, said: str) -> None:
    found = await check_clock(survey(ahead=timedelta(seconds=seconds)))
    assert [str(each.severity) for each in found] == ([severity] if severity else [])
    assert all(said in each.problem for each in found)


@pytest.mark.parametrize(("hard", "count"), [(1024, 1), (4096, 0), (-1, 0)])
async def test_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch, hard: int, count: int) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, hard))
    assert len(await check_open_files(survey())) == count


@pytest.mark.parametrize(
    ("free", "severity", "said"),
    [(18, None, ""), (17, "warning", "one more awake control plane"), (4, "error", "a gateway that starts again")],
)
async def test_inotify_instances_of_processes(
    monkeypatch: pytest.MonkeyPatch, free: int, severity: str | None, said: str
) -> None:
    command = "sudo sysctl -w fs.inotify.max_user_instances=8192"
    shortage = f"user 0 has 125 of 128 inotify instances in use; raise the limit: {command}"
    monkeypatch.setattr(machine, "inotify_shortage", lambda needed: shortage if needed > free else "")
    found = await check_inotify(survey(programs=object.__new__(Processes)))
    assert told(found) == ([(severity, "this machine", command)] if severity else [])
    assert all(said in each.problem and "125 of 128" in each.problem for each in found)
    assert await check_inotify(survey()) == []


# All of it


@pytest.mark.parametrize("failure", [OSError("gone"), ValueError("no number"), KeyError("items")])
async def test_a_check_that_meets_what_it_does_not_understand_is_a_warning(failure: Exception) -> None:
    def fail(_: Any) -> Any:
        raise failure

    reviewing = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    examination = await examine(survey(Api({"/version": VERSION, **SERVED, reviewing: fail})))
    (found,) = [finding for name, finding in examination.findings if name == "rights"]
    assert (found.severity, found.object) == (Severity.WARNING, "check rights")
    assert "failed to check: " in found.problem
    assert str(failure) in found.problem


async def test_a_check_that_fails_is_a_warning_and_errors_come_first() -> None:
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
    failed = {name for name, each in rest if each.problem == "failed to check: no answer"}
    assert failed == {"leader", "gateways"}
    document = examination.to_json()
    assert document["findings"][0] == {
        "check": "not-ready",
        "severity": "error",
        "object": "ControlPlane acme",
        "problem": first[1].problem,
        "command": "kubectl get controlplaneclasses",
    }
    assert "clock" in document["checks"]
