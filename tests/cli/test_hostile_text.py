"""Text of tenants cannot control the terminal, shell or page that shows the text."""

from __future__ import annotations

import ast
import asyncio
import base64
import io
import json
from datetime import timedelta
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from rich.console import Console

from kplane.api import ControlPlane
from kplane.cli.bundle import Bundle
from kplane.cli.commands.diagnosis import _print
from kplane.cli.commands.observation import _event_row
from kplane.cli.commands.operations import _print_lease_guards, _print_plan
from kplane.cli.demo.display import Display
from kplane.cli.description import describe_control_plane
from kplane.cli.doctor import Examination
from kplane.cli.doctor.finding import error
from kplane.cli.doctor.leftovers import check_leftovers
from kplane.cli.errors import Refused
from kplane.cli.joining import join_commands
from kplane.cli.kubeconfigs import Management
from kplane.cli.output import Format, print_objects, print_row, print_table, print_text
from kplane.cli.printable import printable, printable_lines
from kplane.cli.session import say
from kplane.cli.ui.fleet import show_fleet
from kplane.cli.usage import Usage
from kplane.cli.usage_table import render
from kplane.client import ControlPlanes, KubernetesEvent
from kplane.pki.primitives import create_authority
from kplane.provider import Client

HOSTILE = {
    "colour": "\x1b[2K\x1b[1A gone",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8K\x1b\\",
    "link": "\x1b]8;;https://evil.example\x1b\\here\x1b]8;;\x1b\\",
    "one byte": "\x9b31m\x9d0;owned\x9c",
    "return": "good\rbad",
    "backspace": "good\b\b\b\bbad\x7f",
    "direction": "kubectl \u202eetelfed\u202c get",
    "separator": "a\u2028b\u2029c",
    "markup": "[red]a[/red][link=https://evil.example]b[/link][/]",
    "html": "<img src=x onerror=alert(1)>",
    "shell": "END\ntouch planted\n$(touch planted)`touch planted`'\"; touch planted",
}


@pytest.fixture(params=HOSTILE.values(), ids=HOSTILE.keys())
def hostile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def shell(script: str, folder: Path) -> str:
    """Run a script in a folder, and return its output."""
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", script, cwd=folder, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    output, _ = await asyncio.wait_for(process.communicate(), 20.0)
    assert process.returncode == 0
    return output.decode()


def shown(text: str) -> None:
    """Fail if the printed text contains a character that a terminal would obey."""
    bad = [character for character in text if not character.isprintable() and character not in "\n\t"]
    assert not bad, text


@pytest.mark.parametrize("text", ["", "plain", "déjà vu ✓ 日本", "a\tb\nc"])
def test_printable_lines_keeps_plain_text(text: str) -> None:
    assert printable_lines(text) == text


def test_printable_returns_one_printable_line(hostile: str) -> None:
    assert printable("a\udc9bb") == r"a\udc9bb"
    assert printable(hostile).isprintable()
    shown(printable_lines(hostile))


def test_table_escapes_hostile_text(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME", "MESSAGE"], [["acme", hostile]])
    print_row(["acme", hostile], widths=[4, 0])
    output = capsys.readouterr().out
    shown(output)
    assert len(output.splitlines()) == 3


def test_messages_escape_hostile_text(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_text(hostile)
    say(hostile, error=True)
    captured = capsys.readouterr()
    shown(captured.out)
    shown(captured.err)


@pytest.mark.parametrize("form", [Format.JSON, Format.YAML, Format.NAME])
def test_printed_objects_escape_hostile_text_losslessly(
    hostile: str, form: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"kind": "Event", "metadata": {"name": hostile}, "message": hostile}
    print_objects("event", [content], form=form, single=True)
    output = capsys.readouterr().out
    shown(output)
    if form is not Format.NAME:
        assert yaml.safe_load(output) == content
    if form is Format.JSON:
        assert json.loads(output) == content


def test_event_rows_escape_hostile_text(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    raw = {"reason": hostile, "message": hostile, "involvedObject": {"kind": hostile, "name": hostile}, "type": hostile}
    print_table(["A", "B", "C", "D", "E"], [_event_row(KubernetesEvent.read(raw))])
    output = capsys.readouterr().out
    shown(output)
    assert len(output.splitlines()) == 2


async def test_description_escapes_hostile_text(hostile: str) -> None:
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "TenantUnreachable",
        "message": hostile,
        "lastTransitionTime": "2026-11-26T01:00:00Z",
    }
    control_plane = ControlPlane.model_validate(
        {"metadata": {"name": "acme"}, "spec": {}, "status": {"phase": "Failed", "conditions": [condition]}}
    )

    async def one(_: str) -> ControlPlane:
        return control_plane

    async def none(_: str) -> list[Any]:
        return []

    control_planes = cast("ControlPlanes", SimpleNamespace(get=one, registrations=none, snapshots=none))
    lines = await describe_control_plane(control_planes, "acme", cluster=Management())
    assert all(line.isprintable() for line in lines)


def test_findings_and_blockers_escape_hostile_text(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    finding = error("ControlPlane acme", hostile, f"kubectl get {hostile}")
    _print(Examination([("conditions", finding)]))
    blocker = SimpleNamespace(message=hostile, reason="Unequal")
    plan: Any = SimpleNamespace(keys=1, bytes=1, seconds=1, hold_milliseconds=None, blockers=[blocker])
    with pytest.raises(Exception, match="1"):
        _print_plan(plan)
    output = capsys.readouterr().out
    shown(output)
    assert len(output.splitlines()) == 4


def test_move_plan_names_webhooks_on_leases(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"status": "False", "reason": "WebhooksOnLeases", "message": f"guard.example.com {hostile}"}
    condition = {"type": "LeasesUnguarded", "lastTransitionTime": "2026-11-26T01:00:00Z", **fields}
    for conditions in ([condition], []):
        body = {"metadata": {"name": "acme"}, "spec": {}, "status": {"conditions": conditions}}
        _print_lease_guards(ControlPlane.model_validate(body))
    output = capsys.readouterr().out
    shown(output)
    (line,) = output.splitlines()
    assert line.startswith("warning: guard.example.com")


async def test_finding_commands_quote_annotations(hostile: str, tmp_path: Path) -> None:
    metadata = {
        "name": "kplane-cp-acme",
        "labels": {"controlplane.kplane.dev/name": "acme", "controlplane.kplane.dev/retained": "true"},
        "annotations": {"controlplane.kplane.dev/mode": hostile},
    }
    survey: Any = SimpleNamespace(unread={}, serves_kinds=True, owners={}, namespaces=[{"metadata": metadata}])
    [finding] = await check_leftovers(survey)
    command = finding.command.partition(" && kubectl")[0].replace("kplane create", "printf '%s\\n'", 1)
    await shell(command, tmp_path)
    assert not list(tmp_path.iterdir())


def test_live_table_escapes_hostile_text(hostile: str) -> None:
    file = io.StringIO()
    console = Console(file=file, width=400, color_system=None, force_terminal=False)
    console.print(render([Usage(name=hostile, state=hostile)], problems=[hostile]))
    Display(console, steps=1).note(hostile)
    shown(file.getvalue())
    if "[red]" in hostile:
        # Markup is shown, not obeyed.
        assert file.getvalue().count("[red]a[/red]") == 4


def test_support_bundle_escapes_hostile_text(hostile: str) -> None:
    bundle = Bundle()
    bundle.add_text("programs/mcm/log.txt", hostile)
    bundle.add_json("events/default", [{"message": hostile}])
    for text in bundle.files.values():
        shown(text)


def test_page_receives_tenant_text_as_json_data(hostile: str) -> None:
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "Failed",
        "message": hostile,
        "lastTransitionTime": "2026-11-26T01:00:00Z",
    }
    control_plane = ControlPlane.model_validate(
        {"metadata": {"name": "acme"}, "spec": {}, "status": {"conditions": [condition]}}
    )
    content = json.loads(json.dumps(show_fleet([control_plane], [], usages={})))
    assert content["controlPlanes"][0]["conditions"][0]["message"] == hostile


def test_page_script_has_no_function_that_renders_html() -> None:
    script = resources.files("kplane.cli.ui").joinpath("page.js").read_text()
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "createContextualFragment"):
        assert way not in script


def test_commands_print_only_through_escaping_functions() -> None:
    root = Path(__file__).parents[2] / "cli" / "kplane" / "cli"
    direct = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in sorted(root.rglob("*.py"))
        if path.name not in {"output.py", "session.py"}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"typer.echo", "typer.secho", "print", "click.echo"}
    ]
    assert not direct, "print these by print_text, print_table or say"


class Tenant:
    """API of a control plane whose tenant has edited the discovery data of nodes."""

    def __init__(self, discovery: str | None) -> None:
        self._discovery = discovery
        self.created: list[dict[str, Any]] = []

    async def exists(self, *_: Any, **__: Any) -> bool:
        return self._discovery is not None

    async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"data": {"kubeconfig": self._discovery}}

    async def create(self, _: Any, secret: dict[str, Any]) -> None:
        self.created.append(secret)


def published(ca: str) -> str:
    cluster = {"server": "https://apiserver-acme.kplane-cp-acme.svc:6443"}
    cluster["certificate-authority-data"] = base64.b64encode(ca.encode()).decode()
    return yaml.safe_dump(
        {
            "clusters": [{"name": "x", "cluster": cluster}],
            "users": [{"name": "x", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "current-context": "x",
        }
    )


async def joined(tenant: Tenant, *, authorities: list[str], join_url: str) -> str:
    status = {"endpoints": [{"type": "External", "url": "https://e"}, {"type": "Join", "url": join_url}]}
    acme = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {}, "status": status})
    return await join_commands(
        cast("Client", tenant),
        control_plane=acme,
        kubeconfigs=[published(authority) for authority in authorities],
        lifetime=timedelta(hours=1),
    )


async def test_join_commands_contain_no_tenant_text(hostile: str, tmp_path: Path, authorities: tuple[str, str]) -> None:
    own, gateway = authorities
    tenant = Tenant(f"{hostile}\nEND\ntouch planted\n")
    commands = await joined(tenant, authorities=[own, gateway, own], join_url="https://join.example:6443/acme")
    script = commands.replace("kubeadm join", "echo")
    output = await shell(script, tmp_path)
    assert output.split()[:3] == ["--discovery-file", "discovery.conf", "--tls-bootstrap-token"]
    assert [path.name for path in tmp_path.iterdir()] == ["discovery.conf"]
    discovery = yaml.safe_load((tmp_path / "discovery.conf").read_text())
    [cluster] = discovery["clusters"]
    assert cluster["cluster"]["server"] == "https://join.example:6443/acme"
    assert base64.b64decode(cluster["cluster"]["certificate-authority-data"]).decode() == own + gateway
    assert discovery["users"] == []
    assert len(tenant.created) == 1


async def test_join_commands_without_add_on_are_refused(authorities: tuple[str, str]) -> None:
    tenant = Tenant(None)
    with pytest.raises(Refused, match="add kubeadm-join"):
        await joined(tenant, authorities=[authorities[0]], join_url="https://join.example")
    assert tenant.created == []


@pytest.fixture(scope="module")
def authorities() -> tuple[str, str]:
    own, gateway = (create_authority(name).certificate.decode() for name in ("own", "gateway"))
    return own, gateway
