"""Writes objects into a control plane one after the other, while a test moves or restarts its servers."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from e2e.curl import Curl
from e2e.tenant import Tenant
from e2e.waiting import eventually

__all__ = ["RETRIES", "writing"]

RETRIES: Final = ("--retry", "60", "--retry-delay", "1", "--retry-all-errors", "--retry-max-time", "120")
"""Options of curl for a client that retries."""


@contextmanager
def writing(tenant: Tenant, *options: str) -> Iterator[list[str]]:
    """Write ConfigMaps by curl with these options, and yield the growing list of acknowledged names.

    The last write starts after the context ends. Raises AssertionError then if a request failed.
    """
    curl, written, end = Curl.of(tenant), list[str](), threading.Event()
    failures: list[str] = []
    patch = ["--request", "PATCH", "--header", "Content-Type: application/apply-patch+yaml"]

    def write() -> None:
        for number in itertools.count(1):
            name = f"written-{number}"
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
            path = f"/api/v1/namespaces/default/configmaps/{name}?fieldManager=e2e"
            try:
                status, answer = curl(path, *options, *patch, "--data", json.dumps(body))
            except AssertionError as error:
                failures.append(str(error))
                return
            if status not in {200, 201}:
                failures.append(answer)
                return
            written.append(name)
            if end.is_set():
                return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        eventually("the first ConfigMap", lambda: written or failures)
        yield written
        before = len(written)
        eventually("one ConfigMap more", lambda: len(written) > before or failures)
    finally:
        end.set()
        thread.join()
    assert failures == []
