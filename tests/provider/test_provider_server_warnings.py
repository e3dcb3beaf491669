"""Warnings of API servers reach the log once and the handler each time; writes ask for validation of unknown fields."""

from __future__ import annotations

import logging

import pytest
from multidict import CIMultiDict

from kplane.provider import Client, Manager
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.client.server_warnings import ApiWarning, WarningLog, warnings_of
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster

UNKNOWN = 'unknown field "data2"'
BODY = {"metadata": {"name": "m", "namespace": "default"}, "data": {}}


def texts(*values):
    return list(warnings_of(CIMultiDict([("Warning", value) for value in values])))


def test_warnings_of_reads_texts_of_all_headers():
    assert texts('299 - "one", 299 - "two"', r'299 - "unknown field \"x\"" "Sat, 28 Nov 2026 14:00:00 GMT"') == [
        "one",
        "two",
        'unknown field "x"',
    ]
    assert texts("nonsense", '199 - "stale"') == []


def test_warnings_of_hostile_server_are_bounded_and_printable():
    assert len(texts(*['299 - "x"'] * 1000)) == 20
    assert texts(f'299 - "a\x1b[31m{"b" * 9000}"') == ["a [31m" + "b" * 494]


def test_warning_log_forgets_oldest_when_full(caplog):
    log = WarningLog()
    with caplog.at_level(logging.WARNING):
        for text in map(str, range(1001)):
            log.log(ApiWarning(text, "v1/ConfigMap", "", "a"))
        log.log(ApiWarning("1000", "v1/ConfigMap", "", "a"))
        assert len(caplog.records) == 1001
        log.log(ApiWarning("0", "v1/ConfigMap", "", "a"))
    assert len(caplog.records) == 1002


async def test_client_logs_warning_once_with_object_and_cluster(caplog):
    cluster = FakeCluster("shop")
    cluster.warn(UNKNOWN, verb="create", kind="v1/ConfigMap", times=2)
    cluster.warn(UNKNOWN, verb="list", kind="v1/Secret")
    with caplog.at_level(logging.WARNING):
        async with cluster.client as client:
            for name in ("one", "two", "three"):
                await client.create(CONFIG_MAPS, {"metadata": {"name": name, "namespace": "default"}})
            await client.list("v1/Secret")
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        f"the API server of shop warns about v1/ConfigMap default/one: {UNKNOWN}",
        f"the API server of shop warns about v1/Secret: {UNKNOWN}",
    ]
    assert cluster.warnings == [
        ApiWarning(UNKNOWN, "v1/ConfigMap", "default/one", "shop"),
        ApiWarning(UNKNOWN, "v1/ConfigMap", "default/two", "shop"),
        ApiWarning(UNKNOWN, "v1/Secret", "", "shop"),
    ]


async def test_manager_passes_warnings_of_its_clusters_to_its_callback(eventually):
    cluster, provider, seen = FakeCluster("a"), ClustersProvider(), []
    cluster.warn("deprecated", verb="watch", kind="v1/ConfigMap")
    await provider.add(cluster)
    async with Manager(None, provider, name="test", on_warning=seen.append) as manager:
        await eventually(manager.cluster_names)
        async with cluster.client.watch(CONFIG_MAPS, resource_version="0") as watch:
            await watch.open()
    assert seen == [ApiWarning("deprecated", "v1/ConfigMap", "", "a")]


async def test_client_reports_warnings_of_a_refusal_and_of_other_requests(fault_server, tools):
    async def answer(request, writer):
        status = 200 if request.target == "/version" else 404
        writer.write(tools.http({}, status=status, headers='Warning: 299 - "old"\r\n'))

    server, seen = await fault_server(answer), []
    async with Client(server.config, on_warning=seen.append) as client:
        await client.request("GET", "/version")
        assert not await client.exists(CONFIG_MAPS, "m", namespace="default")
    assert seen == [
        ApiWarning("old", "/version", "", server.config.server),
        ApiWarning("old", "v1/ConfigMap", "default/m", server.config.server),
    ]


@pytest.mark.parametrize("write", ["create", "replace", "patch", "json_patch", "apply"])
@pytest.mark.parametrize("validation", [None, "Strict", "Ignore"])
async def test_each_write_asks_for_field_validation(fault_server, tools, write, validation):
    async def answer(_, writer):
        writer.write(tools.http(BODY))

    server = await fault_server(answer)
    options = {"field_validation": validation} if validation else {}
    async with Client(server.config, field_manager="test", **options) as client:
        await {
            "create": lambda: client.create(CONFIG_MAPS, BODY),
            "replace": lambda: client.replace(CONFIG_MAPS, BODY),
            "patch": lambda: client.patch(CONFIG_MAPS, "m", {}, namespace="default"),
            "json_patch": lambda: client.json_patch(CONFIG_MAPS, "m", [], namespace="default"),
            "apply": lambda: client.apply(CONFIG_MAPS, BODY),
        }[write]()
    assert f"fieldValidation={validation or 'Warn'}" in server.asked[-1].target
