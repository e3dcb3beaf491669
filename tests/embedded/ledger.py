"""Writers that do not retry, and the ledger that they keep: each acknowledged write has to be there in the end."""

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
"""More than the gateway lets a request wait."""
_PAGE: Final = 500
_PAUSE_SECONDS: Final = 0.2
_FAILURES: Final = (OSError, http.client.HTTPException)

Key = tuple[int, str]
"""An object: number of its kind, and name."""


class Refused(Exception):
    """The server answered, and not with success."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said[:300]}")
        self.status = status


class Connection:
    """A client of one thread, which sends each request once: one that failed is not repeated, on no connection."""

    def __init__(self, config: ClusterConfig, *, keep: bool = True, timeout: float = _ANSWER_SECONDS) -> None:
        """Unless `keep`, each request has a connection of its own, as with curl."""
        server = urlsplit(config.server)
        self._path, self._keep = server.path, keep
        self._headers = {"Authorization": f"Bearer {config.token}"} if config.token is not None else {}
        context = ssl_context(config)
        self._http = http.client.HTTPSConnection(server.hostname or "", server.port, context=context, timeout=timeout)

    def close(self) -> None:
        self._http.close()

    def __call__(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer. Raises Refused, or what the connection raises: then it may have been done."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {**self._headers, "Content-Type": kind, **({} if self._keep else {"Connection": "close"})}
        try:
            self._http.request(method, self._path + path, json.dumps(body) if body is not None else None, headers)
            answer = self._http.getresponse()
            said = answer.read()
        except _FAILURES:
            self._http.close()
            raise
        if answer.status not in {200, 201}:
            raise Refused(answer.status, said.decode(errors="replace"))
        return dict(json.loads(said))


@dataclass(frozen=True, slots=True)
class Entry:
    """What an object is."""

    uid: str
    value: str
    digest: str
    """Of all that neither controllers nor etcd change."""
    version: int

    @staticmethod
    def of(found: dict[str, Any]) -> Entry:
        metadata = found["metadata"]
        # Answers to lists have no kind in each object.
        rest = {name: part for name, part in found.items() if name not in {"apiVersion", "kind", "metadata", "status"}}
        kept = {name: metadata.get(name) for name in ("name", "namespace", "labels", "creationTimestamp")}
        digest = hashlib.sha256(json.dumps([kept, rest], sort_keys=True).encode()).hexdigest()
        return Entry(metadata["uid"], metadata["annotations"][_VALUE], digest, int(metadata["resourceVersion"]))

    def is_same(self, other: Entry | None) -> bool:
        """Tell whether this is the same object with the same content. A copy has a new version, and controllers may
        write a status.
        """
        return other is not None and (self.uid, self.value, self.digest) == (other.uid, other.value, other.digest)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A write without an answer: it may have taken effect."""

    method: str
    value: str

    def explains(self, found: Entry | None) -> bool:
        if self.method == "DELETE":
            return found is None
        return found is not None and found.value == self.value


@dataclass(slots=True)
class Ledger:
    """What `writers` clients did, each with objects of its own, `size` in all. Written to by their threads."""

    config: ClusterConfig
    size: int
    writers: int = 4
    a_second: float = 100.0
    """Writes of all writers together, once all objects are there."""
    acknowledged: int = 0
    conflicts: int = 0
    """Updates with the version of a read just before that were refused for that: see docs/how-to/move.md."""
    errors: list[str] = field(default_factory=list)
    slowest_seconds: float = 0.0
    kinds: set[int] = field(default_factory=set)
    """Numbers of those that were written."""
    _last: dict[Key, Entry | None] = field(default_factory=dict)
    """By each object's last acknowledged write. None: it was deleted."""
    _former: set[str] = field(default_factory=set)
    """Uids of deleted objects."""
    _open: dict[Key, Attempt] = field(default_factory=dict)
    """Nothing more is written there: what was sent may take effect much later."""
    _rounds: int = 0
    """How often the writers began: no value is written twice."""
    _strange: list[str] = field(default_factory=list)
    """What no server may answer."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def fill(self) -> None:
        """Create all objects."""
        await self._run(self._fill)
        assert self.errors == []

    @contextlib.asynccontextmanager
    async def written(self) -> AsyncIterator[None]:
        """Create, update, patch and delete objects meanwhile."""
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
        """Read all objects, when nobody writes, and say what is not as the ledger has it."""
        found = await asyncio.to_thread(self._read)
        present = {entry.uid for entry in found.values()}
        said = self._strange + [f"{uid} was deleted, and is there" for uid in self._former & present]
        said += [f"{key}: nobody wrote that" for key in found.keys() - self._last.keys() - self._open.keys()]
        for key in self._last.keys() | self._open.keys():
            last, here, attempt = self._last.get(key), found.get(key), self._open.get(key)
            same = here is None if last is None else last.is_same(here)
            if not same and (attempt is None or not attempt.explains(here)):
                said.append(f"{KINDS[key[0]].path}/{key[1]} is {here}, and has to be {last} or of {attempt}")
            elif same and last is not None and here is not None and here.version < last.version:
                said.append(f"{KINDS[key[0]].path}/{key[1]} is older than it was: {here.version} < {last.version}")
        return said

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
                now = self._change(send, key, method, value, conditional=chance.random() < 0.3)
                # One etcd counts the writes of all kinds, and clients take a lower version for an older one.
                if now is not None and now <= version:
                    self._strange.append(f"version {now} came after {version}")
                version = now or version
                # What was late, because writes waited, is not made up for.
                due = max(due + self.writers / self.a_second, time.monotonic() - 1.0)
                stop.wait(max(0.0, due - time.monotonic()))

    def _change(self, send: Connection, key: Key, method: str, value: str, *, conditional: bool = False) -> int | None:
        """Send one write, and note what became of it; returns the version that it made."""
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
        """Return when reads are answered again: otherwise each failure left one more object open."""
        until, pause = time.monotonic() + _ANSWER_SECONDS, threading.Event()
        while time.monotonic() < until and not pause.wait(_PAUSE_SECONDS):
            with contextlib.suppress(Refused, *_FAILURES):
                send("GET", f"{path}?limit=1")
                return

    def _fail(self, said: str) -> None:
        with self._lock:
            self.errors.append(said)

    def _read(self) -> dict[Key, Entry]:
        found: dict[Key, Entry] = {}
        with contextlib.closing(Connection(self.config)) as send:
            for number, kind in enumerate(KINDS):
                after = ""
                while True:
                    page = send("GET", f"{kind.path}?labelSelector={LABEL}&limit={_PAGE}&continue={after}")
                    found |= {(number, item["metadata"]["name"]): Entry.of(item) for item in page["items"]}
                    after = page["metadata"].get("continue", "")
                    if not after:
                        break
        return found


def _body(kind: Kind, name: str, value: str, method: str) -> dict[str, Any] | None:
    metadata: dict[str, Any] = {"annotations": {_VALUE: value}}
    if method == "DELETE":
        return None
    if method == "PATCH":
        return {"metadata": metadata}
    metadata |= {"name": name, "labels": {LABEL: "true"}}
    resource = kind.resource
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **kind.body}
