"""The state of objects, read from responses to writes."""

from __future__ import annotations

import pytest

from kplane.provider.client.resources import DEPLOYMENTS, NAMESPACES, PODS
from kplane.provider.client.written import read_removal, read_write


def answer(kind, *, spec=None, **metadata):
    metadata = {"name": "a", "namespace": "x", "uid": "u", "resourceVersion": "7", **metadata}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec or {}}


TIME = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("fields", "is_gone"),
    [
        ({}, False),
        ({"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 0}, True),
        ({"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 0, "finalizers": ["a/b"]}, False),
        ({"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 30}, False),
    ],
)
def test_update_that_drops_the_last_finalizer_removes_the_object(fields, is_gone):
    written = read_write(PODS, answer(PODS, **fields))
    assert written is not None
    assert (written.object is None) is is_gone
    assert (written.namespace, written.name, written.uid, written.resource_version) == ("x", "a", "u", "7")


def test_namespace_with_spec_finalizers_is_not_removed():
    ending = {"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 0}
    held = answer(NAMESPACES, spec={"finalizers": ["kubernetes"]}, **ending)
    assert read_write(NAMESPACES, held).object == held
    assert read_removal(NAMESPACES, held, name="a", namespace=None, uid=None).object == held


def test_response_of_another_kind_is_ignored():
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a", "uid": "u"}}
    assert read_write(DEPLOYMENTS, scale) is None


@pytest.mark.parametrize(
    ("details", "precondition", "uid"),
    [({"uid": "u"}, None, "u"), ({}, "p", "p"), (None, None, None), ({"uid": "u"}, "p", "u")],
)
def test_delete_status_removes_the_object_by_uid(details, precondition, uid):
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
    written = read_removal(PODS, status, name="a", namespace="x", uid=precondition)
    assert (None if written is None else (written.name, written.uid, written.object)) == (uid and ("a", uid, None))


def test_delete_response_without_deletion_timestamp_is_a_removal():
    assert read_removal(PODS, answer(PODS), name="a", namespace="x", uid=None).object is None
    ending = answer(PODS, deletionTimestamp=TIME, deletionGracePeriodSeconds=30)
    assert read_removal(PODS, ending, name="a", namespace="x", uid=None).object == ending
