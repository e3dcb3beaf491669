"""Metrics, Events and logs of instances."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.describe.controllers import component_name
from kplane.mcm.serving.metric_allowlist import SERIES
from kplane.pki.primitives import issue_client
from kplane.provider import Client
from kplane.provider.client.resources import EVENTS
from kplane.provider.providers.kplane import REGISTRATIONS

from .control_planes import works
from .mcm_process import Samples, samples

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
Fleet = Any

OWN_SERIES = {f"mcm_instance_{name}" for name in ("up", "restarts_total", "exits_total", "pss_bytes", "scrape_success")}


def status_of(url: str, certificate: Path | None) -> int:
    """Return the HTTP status for a client with this certificate and its key."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate)
    try:
        with urllib.request.urlopen(url, timeout=60.0, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def test_mcm_passes_on_metrics_and_other_clients_are_refused(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start()
    for stem in ("one", "two"):
        await fleet.register(stem, tenants[stem].controllers_secret(), server=tenants[stem].server)
    names = [fleet.name(stem) for stem in ("one", "two")]
    pids = {name: (await state(name, "Ready"))["pid"] for name in names}
    await works(one, eventually)

    expected_series = {series for series in SERIES if not series.startswith("scheduler_")}

    def complete(found: Samples) -> bool:
        """Return whether both instances have all series, some of which begin with the first action of their kind."""
        series_by_name = {name: {sample for sample, cluster in found if cluster == name} for name in names}
        return all(
            series_by_name[name] >= expected_series and found["rest_client_requests_total", name]["2xx"] > 10
            for name in names
        )

    values = await eventually(lambda: asyncio.to_thread(samples, mcm), complete)
    for name in names:
        assert {sample for sample, cluster in values if cluster == name} - OWN_SERIES == expected_series
        assert values["workqueue_adds_total", name][""] > 0
        assert values["mcm_instance_scrape_success", name][""] == 1
    assert ("process_cpu_seconds_total", "") in values

    # The instance refuses clients without a certificate, and an admin of the tenant, whose API server would allow it.
    [port] = {json.loads((mcm.state / component_name(names[0]) / "address.json").read_text())["ports"]["https"]}
    admin = mcm.state.parent / "admin.pem"
    client = issue_client(tenants["one"].authorities.client, user="admin", groups=("system:masters",))
    admin.write_bytes(client.certificate + client.key)
    for certificate in (None, admin):
        assert await asyncio.to_thread(status_of, f"https://127.0.0.1:{port}/metrics", certificate) in {401, 403}

    # A hung instance has scrape_success 0, and the metrics of the other instance are there.
    os.kill(pids[names[0]], signal.SIGSTOP)
    try:
        # The running instance may answer slowly. The stopped instance never answers.
        values = await eventually(
            lambda: asyncio.to_thread(samples, mcm), lambda found: ("workqueue_depth", names[1]) in found
        )
        assert values.get(("mcm_instance_scrape_success", names[0]), {"": 0})[""] == 0
        assert ("workqueue_depth", names[0]) not in values
    finally:
        os.kill(pids[names[0]], signal.SIGCONT)
    await fleet.client.delete(REGISTRATIONS, names[1])
    await eventually(lambda: asyncio.to_thread(mcm.clusters), lambda found: list(found) == [names[0]])
    await eventually(
        lambda: asyncio.to_thread(samples, mcm), lambda found: {cluster for _, cluster in found} == {"", names[0]}
    )


async def test_events_and_logs_report_a_kill_without_status_writes(
    mcm: Any, fleet: Fleet, tenants: Any, state: Any, eventually: Eventually
) -> None:
    mcm.start("--instance-logs=json", "--no-report-status")
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server)
    metadata = (await fleet.client.get(REGISTRATIONS, name))["metadata"]
    uid, version = metadata["uid"], metadata["resourceVersion"]
    old_pid = (await state(name, "Ready"))["pid"]

    os.kill(old_pid, signal.SIGKILL)
    summary = await state(name, "Ready", lambda found: found["pid"] != old_pid and "SIGKILL" in found["lastError"])
    assert (summary["restarts"], summary["exits"]["Killed"], summary["message"]) == (1, 1, "")
    table = (await asyncio.to_thread(mcm.get, "/clusters?format=table"))[1].splitlines()
    [row] = [line for line in table if line.startswith(name)]
    assert "was ended by signal SIGKILL" in row
    assert re.search(r" [0-9]+Mi ", row)
    assert f"[+]cluster/{name} Ready" in (await asyncio.to_thread(mcm.get, "/readyz?verbose"))[1]

    async def told() -> list[tuple[str, str, str]]:
        events = (await fleet.client.list(EVENTS, namespace="default")).items
        ours = [event for event in events if event["involvedObject"].get("uid") == uid]
        return [(event["type"], event["reason"], event["message"]) for event in ours]

    reasons = {("Normal", "InstanceStarted"), ("Warning", "Killed")}
    events = await eventually(told, lambda found: reasons <= {(kind, reason) for kind, reason, _ in found})
    [cause] = [message for _, reason, message in events if reason == "Killed"]
    assert cause.startswith("was ended by signal SIGKILL")
    assert (await fleet.client.get(REGISTRATIONS, name))["metadata"]["resourceVersion"] == version
    assert await fleet.told("a") == ("", "", "")

    assert await asyncio.to_thread(mcm.end) == 0
    lines = [json.loads(line) for line in mcm.output.read_text().splitlines()]
    assert {line["cluster"] for line in lines} == {name}
    assert any("Serving securely" in line["message"] for line in lines)
    assert {line["level"] for line in lines} >= {"info", "warning"}
