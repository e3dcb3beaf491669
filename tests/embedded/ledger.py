"""Writers that do not retry, and a ledger of their writes: each acknowledged write must be present at the end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from kplane.provider import ClusterConfig
from kplane.provider.client.tls import ssl_context

from .ledger_kinds import KINDS, Kind

__all__ = ["Connection", "Entry", "Ledger", "Refused"]

LABEL: Final = "ledger.example.com/written"
_VALUE: Final = "ledger.example.com/value"
_ANSWER_SECONDS: Final = 90.0
"""Longer than the gateway holds a request."""
_PAGE: Final = 500
_PAUSE_SECONDS: Final = 0.2
_FAILURES: Final = (OSError, http.client.HTTPException)

Key = tuple[int, str]
"""An object: index of its kind in `KINDS`, and name."""


class Refused(Exception):
    """The server answered with an error status."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said[:300]}")
        self.status = status


class Connection:
    """A client for a single thread. Sends each request once: a failed request is never retried."""

    def __init__(self, config: ClusterConfig, *, keep: bool = True, timeout: float = _ANSWER_SECONDS) -> None:
        """Keep the connection open if `keep`. Otherwise each request opens a connection, as with curl."""
        server = urlsplit(config.server)
        self._path, self._keep = server.path, keep
        self._headers = {"Authorization": f"Bearer {config.token}"} if config.token is not None else {}
        context = ssl_context(config)
        self._http = http.client.HTTPSConnection(server.hostname or "", server.port, context=context, timeout=timeout)

    def close(self) -> None:
        self._http.close()

    def __call__(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the response.

        Raises Refused for an error status. After an error of the connection, the request may have taken effect.
        """
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {**self._headers, "Content-Type": kind, **({} if self._keep else {"Connection": "close"})}
        try:
            self._http.request(method, self._path + path, json.dumps(body) if body is not None else None, headers)
            answer = self._http.getresponse()
            content = answer.read()
        except _FAILURES:
            self._http.close()
            raise
        if answer.status not in {200, 201}:
            raise Refused(answer.status, content.decode(errors="replace"))
        return dict(json.loads(content))


@dataclass(frozen=True, slots=True)
class Entry:
    """The identity, content and version of an object."""

    uid: str
    value: str
    digest: str
    """Hash of the fields that neither controllers nor etcd change."""
    version: int

    @staticmethod
    def of(found: dict[str, Any]) -> Entry:
        metadata = found["metadata"]
        # Items of list responses have no kind.
        fields = {
            name: part for name, part in found.items() if name not in {"apiVersion", "kind", "metadata", "status"}
        }
        identity = {name: metadata.get(name) for name in ("name", "namespace", "labels", "creationTimestamp")}
        digest = hashlib.sha256(json.dumps([identity, fields], sort_keys=True).encode()).hexdigest()
        return Entry(metadata["uid"], metadata["annotations"][_VALUE], digest, int(metadata["resourceVersion"]))

    def is_same(self, other: Entry | None) -> bool:
        """Tell whether this is the same object with the same content.

        Versions and status are not compared: a copy has a new version, and controllers may write a status.
        """
        return other is not None and (self.uid, self.value, self.digest) == (other.uid, other.value, other.digest)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A write without a response, which may have taken effect."""

    method: str
    value: str

    def explains(self, found: Entry | None) -> bool:
        if self.method == "DELETE":
            return found is None
        return found is not None and found.value == self.value


@dataclass(slots=True)
class Ledger:
    """The writes of `writers` clients to `size` objects. Each client has its own objects and its own thread."""

    config: ClusterConfig
    size: int
    writers: int = 4
    a_second: float = 100.0
    """Writes per second of all writers together, after `fill`."""
    acknowledged: int = 0
    conflicts: int = 0
    """Updates refused with 409 although they carry the version of a read just before: see docs/how-to/move.md."""
    errors: list[str] = field(default_factory=list)
    slowest_seconds: float = 0.0
    kinds: set[int] = field(default_factory=set)
    """Indexes of the kinds with an acknowledged write."""
    _last: dict[Key, Entry | None] = field(default_factory=dict)
    """Last acknowledged state of each object. None means deleted."""
    _former: set[str] = field(default_factory=set)
    """UIDs of deleted objects."""
    _open: dict[Key, Attempt] = field(default_factory=dict)
    """Writes without a response. They may take effect much later, so their objects get no further writes."""
    _rounds: int = 0
    """Number of runs of the writers. Makes each written value unique."""
    _strange: list[str] = field(default_factory=list)
    """Responses that no correct server gives."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def fill(self) -> None:
        """Create all objects."""
        await self._run(self._fill)
        assert self.errors == []

    @contextlib.asynccontextmanager
    async def written(self) -> AsyncIterator[None]:
        """Create, update, patch and delete objects while the body runs."""
        stop = threading.Event()
        self._rounds += 1
        task = asyncio.create_task(self._run(lambda writer: self._write(writer, stop)))
        try:
            yield
            assert not task.done()
        finally:
            stop.set()
            await task

    async def wrong(self) -> list[str]:
        """Read all objects while no writer runs, and return their differences from the ledger."""
        entries = await asyncio.to_thread(self._read)
        present = {entry.uid for entry in entries.values()}
        problems = self._strange + [f"{uid} was deleted, and is there" for uid in self._former & present]
        problems += [f"{key}: nobody wrote that" for key in entries.keys() - self._last.keys() - self._open.keys()]
        for key in self._last.keys() | self._open.keys():
            last, actual, attempt = self._last.get(key), entries.get(key), self._open.get(key)
            same = actual is None if last is None else last.is_same(actual)
            if not same and (attempt is None or not attempt.explains(actual)):
                problems.append(f"{KINDS[key[0]].path}/{key[1]} is {actual}, and has to be {last} or of {attempt}")
            elif same and last is not None and actual is not None and actual.version < last.version:
                problems.append(
                    f"{KINDS[key[0]].path}/{key[1]} is older than it was: {actual.version} < {last.version}"
                )
        return problems

    async def _run(self, work: Any) -> None:
        with ThreadPoolExecutor(self.writers) as pool:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(pool, work, writer) for writer in range(self.writers)))

    def _keys(self, writer: int) -> list[Key]:
        return [
            (number % len(KINDS), f"ledger-{number:05}")
            for number in range(self.size)
            if number // len(KINDS) % self.writers == writer
        ]

    @contextlib.contextmanager
    def _connected(self, writer: int) -> Iterator[Connection]:
        with contextlib.closing(Connection(self.config, keep=writer != 0)) as send:
            yield send

    def _fill(self, writer: int) -> None:
        with self._connected(writer) as send:
            for key in self._keys(writer):
                if self._last.get(key) is None and not self.errors:
                    self._change(send, key, "POST", "first")

    def _write(self, writer: int, stop: threading.Event) -> None:
        chance, keys = random.Random(writer), self._keys(writer)
        due, count, version = time.monotonic(), 0, 0
        with self._connected(writer) as send:
            while not stop.is_set():
                count += 1
                key = chance.choice(keys)
                if key in self._open:
                    continue
                method = chance.choice(["PUT", "PUT", "PATCH", "PATCH", "DELETE"])
                if self._last.get(key) is None:
                    method = "POST"
                value = f"{self._rounds} {writer} {count}"
                written = self._change(send, key, method, value, conditional=chance.random() < 0.3)
                # All kinds share the revision of one etcd, and clients take a lower version for an older object.
                if written is not None and written <= version:
                    self._strange.append(f"version {written} came after {version}")
                version = written or version
                # The schedule does not catch up on time that writes spent waiting.
                due = max(due + self.writers / self.a_second, time.monotonic() - 1.0)
                stop.wait(max(0.0, due - time.monotonic()))

    def _change(self, send: Connection, key: Key, method: str, value: str, *, conditional: bool = False) -> int | None:
        """Send a write and record its result. Returns the new version of the object, or None."""
        kind, (number, name) = KINDS[key[0]], key
        path = kind.path if method == "POST" else f"{kind.path}/{name}"
        last = self._last.get(key)
        began = time.monotonic()
        sent = False
        try:
            body = _body(kind, name, value, method)
            if method == "PUT" and (conditional or not kind.unconditional):
                read = send("GET", path)
                body["metadata"]["resourceVersion"] = read["metadata"]["resourceVersion"]
            sent = True
            answer = send(method, path, body)
        except (Refused, *_FAILURES) as error:
            if isinstance(error, Refused) and error.status == 409 and method == "PUT":
                with self._lock:
                    self.conflicts += 1
                return None
            if sent:
                self._open[key] = Attempt(method, value)
            self._fail(f"{time.time():.3f} {method} {path}: {type(error).__name__} {error}")
            self._await_answer(send, kind.path)
            return None
        entry = Entry.of(answer) if method != "DELETE" else None
        with self._lock:
            self.acknowledged += 1
            self.kinds.add(number)
            self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
            if entry is None and last is not None:
                self._former.add(last.uid)
            if method in {"PUT", "PATCH"} and last is not None and entry is not None and entry.uid != last.uid:
                self._strange.append(f"{path} had uid {last.uid}, and now {entry.uid}")
        self._last[key] = entry
        return entry.version if entry is not None else None

    def _await_answer(self, send: Connection, path: str) -> None:
        """Wait until the server answers reads again. Otherwise each failure would leave another open object."""
        deadline, pause = time.monotonic() + _ANSWER_SECONDS, threading.Event()
        while time.monotonic() < deadline and not pause.wait(_PAUSE_SECONDS):
            with contextlib.suppress(Refused, *_FAILURES):
                send("GET", f"{path}?limit=1")
                return

    def _fail(self, said: str) -> None:
        with self._lock:
            self.errors.append(said)

    def _read(self) -> dict[Key, Entry]:
        entries: dict[Key, Entry] = {}
        with contextlib.closing(Connection(self.config)) as send:
            for number, kind in enumerate(KINDS):
                after = ""
                while True:
                    page = send("GET", f"{kind.path}?labelSelector={LABEL}&limit={_PAGE}&continue={after}")
                    entries |= {(number, item["metadata"]["name"]): Entry.of(item) for item in page["items"]}
                    after = page["metadata"].get("continue", "")
                    if not after:
                        break
        return entries


def _body(kind: Kind, name: str, value: str, method: str) -> dict[str, Any] | None:
    metadata: dict[str, Any] = {"annotations": {_VALUE: value}}
    if method == "DELETE":
        return None
    if method == "PATCH":
        return {"metadata": metadata}
    metadata |= {"name": name, "labels": {LABEL: "true"}}
    resource = kind.resource
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **kind.body}
