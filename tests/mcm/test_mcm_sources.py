"""Flags that choose the source of control planes, and conflicts between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplane.api import RegistrationMode
from kplane.mcm.settings import Settings
from kplane.mcm.source.sources import Source, SourceKind
from kplane.provider import Client, ClusterConfig, ProviderError

ENDPOINTS = "--cluster-source=controlplaneendpoint"
TEMPLATE = "--cluster-kubeconfig-secret-template"


def parse(tmp_path: Path, *flags: str) -> Source:
    return Settings.parse([f"--state-dir={tmp_path}/state", f"--programs-dir={tmp_path}", *flags]).source


def test_default_source_is_all_registrations(tmp_path: Path) -> None:
    source = parse(tmp_path)
    assert (source.kind, source.secrets, source.selector) == (SourceKind.REGISTRATIONS, None, None)
    assert parse(tmp_path, "--cluster-selector=tier in (gold,silver)").selector == "tier in (gold,silver)"


def test_endpoint_has_the_secret_of_the_template(tmp_path: Path) -> None:
    source = parse(tmp_path, ENDPOINTS, TEMPLATE, "kplane-cp-{name}/{name}-controllers", "--cluster-selector=a!=b")
    assert source.secrets is not None
    assert source.secrets.secret_of("x") == ("kplane-cp-x", "x-controllers")
    assert source.selector == "a!=b"
    scoped = parse(tmp_path, ENDPOINTS, f"{TEMPLATE}={{name}}-kubeconfig", "--cluster-namespace-scope=fleet")
    assert scoped.secrets is not None
    assert scoped.secrets.secret_of("x") == ("fleet", "x-kubeconfig")


def test_flag_registration_sets_mode_dedicated(tmp_path: Path) -> None:
    source = parse(tmp_path, "--registration=a.b", "--report-status")
    assert (source.registration, source.mode) == ("a.b", RegistrationMode.DEDICATED)
    assert parse(tmp_path).mode is RegistrationMode.SHARED


async def test_only_the_source_of_registrations_has_registrations(tmp_path: Path) -> None:
    async with Client(ClusterConfig("https://127.0.0.1:1"), field_manager="kplane") as client:
        assert parse(tmp_path).follow(client).registrations is not None
        endpoints = parse(tmp_path, ENDPOINTS, f"{TEMPLATE}=fleet/{{name}}").follow(client)
        assert endpoints.registrations is None
        assert not endpoints.synced()


async def test_registration_without_an_instance_is_unused_after_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: dict[str, object] = {"busy": {"instance": {}}, "new": {}, "ended": {"instance": None}, "unknown": None}
    async with Client(ClusterConfig("https://127.0.0.1:1"), field_manager="kplane") as client:
        source = parse(tmp_path).follow(client)
        assert source.registrations is not None
        with pytest.raises(ProviderError, match="have not been read yet"):
            source.unused(lambda _: True)
        monkeypatch.setattr(source.registrations, "has_synced", lambda: True)
        monkeypatch.setattr(source.registrations, "names", lambda: list(statuses))
        monkeypatch.setattr(source.registrations, "registration", lambda name: {"status": statuses[name]})
        assert not source.unused(lambda _: True)
        assert source.unused(lambda name: name != "busy")
        # An endpoint has no status with its instance.
        endpoints = parse(tmp_path, ENDPOINTS, f"{TEMPLATE}=fleet/{{name}}").follow(client)
        assert not endpoints.unused(lambda _: False)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([ENDPOINTS], "needs --cluster-kubeconfig-secret-template"),
        ([ENDPOINTS, f"{TEMPLATE}={{name}}"], "names no namespace"),
        ([ENDPOINTS, f"{TEMPLATE}={{name}}", "--cluster-namespace-scope=No_Name"], "cannot be the name of a namespace"),
        ([ENDPOINTS, f"{TEMPLATE}=b/{{name}}", "--cluster-namespace-scope=a"], "leads out of the namespace scope"),
        ([f"{TEMPLATE}=fleet/{{name}}"], f"{TEMPLATE} is for {ENDPOINTS}"),
        (["--cluster-namespace-scope=fleet"], f"--cluster-namespace-scope is for {ENDPOINTS}"),
        (["--cluster-selector=tier>3"], "cannot be read"),
        (["--cluster-source=namespaces"], "invalid choice"),
        (["--registration=a"], "--registration needs --report-status"),
        (["--registration=a,metadata.name=b", "--report-status"], "cannot be the name of a registration"),
        (["--registration=", "--report-status"], "cannot be the name of a registration"),
        (["--registration=a", "--cluster-selector=a=b", "--report-status"], "chooses among many"),
        (["--registration=a", ENDPOINTS, f"{TEMPLATE}=fleet/{{name}}"], "is for --cluster-source=controlplaneregist"),
    ],
)
def test_conflicting_source_flags_are_refused_with_the_reason(
    tmp_path: Path, flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse(tmp_path, *flags)
    assert exit_info.value.code == 2
    assert reason in " ".join(capsys.readouterr().err.split())
