"""Which flags say where control planes are found, and which do not go together."""

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


def test_registrations_are_the_default_and_all_of_them(tmp_path: Path) -> None:
    source = parse(tmp_path)
    assert (source.kind, source.secrets, source.selector) == (SourceKind.REGISTRATIONS, None, None)
    assert parse(tmp_path, "--cluster-selector=tier in (gold,silver)").selector == "tier in (gold,silver)"


def test_endpoints_have_the_secret_that_the_template_names(tmp_path: Path) -> None:
    source = parse(tmp_path, ENDPOINTS, TEMPLATE, "kplane-cp-{name}/{name}-controllers", "--cluster-selector=a!=b")
    assert source.secrets is not None
    assert source.secrets.secret_of("x") == ("kplane-cp-x", "x-controllers")
    assert source.selector == "a!=b"
    scoped = parse(tmp_path, ENDPOINTS, f"{TEMPLATE}={{name}}-kubeconfig", "--cluster-namespace-scope=fleet")
    assert scoped.secrets is not None
    assert scoped.secrets.secret_of("x") == ("fleet", "x-kubeconfig")


def test_one_registration_is_of_mode_dedicated(tmp_path: Path) -> None:
    source = parse(tmp_path, "--registration=a.b", "--report-status")
    assert (source.registration, source.mode) == ("a.b", RegistrationMode.DEDICATED)
    assert parse(tmp_path).mode is RegistrationMode.SHARED


async def test_who_is_told_of_instances(tmp_path: Path) -> None:
    async with Client(ClusterConfig("https://127.0.0.1:1"), field_manager="kplane") as client:
        assert parse(tmp_path).follow(client).registrations is not None
        followed = parse(tmp_path, ENDPOINTS, f"{TEMPLATE}=fleet/{{name}}").follow(client)
        assert followed.registrations is None
        assert not followed.synced()


async def test_what_has_no_instance_is_unused_once_all_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: dict[str, object] = {"busy": {"instance": {}}, "new": {}, "ended": {"instance": None}, "unknown": None}
    async with Client(ClusterConfig("https://127.0.0.1:1"), field_manager="kplane") as client:
        followed = parse(tmp_path).follow(client)
        assert followed.registrations is not None
        with pytest.raises(ProviderError, match="have not been read yet"):
            followed.unused(lambda _: True)
        monkeypatch.setattr(followed.registrations, "has_synced", lambda: True)
        monkeypatch.setattr(followed.registrations, "names", lambda: list(statuses))
        monkeypatch.setattr(followed.registrations, "registration", lambda name: {"status": statuses[name]})
        assert not followed.unused(lambda _: True)
        assert followed.unused(lambda name: name != "busy")
        # Of endpoints, nobody writes whether they have one.
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
def test_what_does_not_go_together_is_refused_with_a_sentence(
    tmp_path: Path, flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(tmp_path, *flags)
    assert ended.value.code == 2
    assert reason in " ".join(capsys.readouterr().err.split())
