"""Permissions of a tenant's user in the shared etcd, for each call of etcd's API.

`PLACED` assigns each call of etcd's API to a test, and is compared with the calls that the server has. A new call of
another version fails a test until `PLACED` contains it. Calls that etcd permits beyond the tenant's prefix are known
limits: a test covers them, and docs/reference/security-limits.md names them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from kplane.data import Credentials
from kplane.data._proto import etcd_pb2 as pb
from kplane.pki.primitives import KeyPair, issue_client
from tests.controlplane_operator.tenants import opens_peer_port

pytestmark = pytest.mark.integration

OWN = b"/clusters/a/"
OWN_END = b"/clusters/a0"
FOREIGN = (b"/clusters/aa/", b"/clusters/a-b/", b"/clusters/A/", b"/registry/")
EVERYTHING = {"key": b"\0", "range_end": b"\0"}

REFUSED = "permission denied"
NO_USER = "user name not found"


class Raw:
    """Connection to etcd that calls methods by name, including methods that the client lacks."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def ask(self, method: str, request: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(
            f"/{method}", request_serializer=_bytes_of, response_deserializer=answer.FromString
        )
        return await call(request, timeout=10)

    async def stream(self, method: str, request: Any, answer: Any, *, open_ended: bool = True) -> Any:
        """Return the first answer, if any, of a streaming call; `open_ended`: the requests are a stream, too."""
        call = self._channel.stream_stream(
            f"/{method}", request_serializer=_bytes_of, response_deserializer=answer.FromString
        )(timeout=10)
        await call.write(request)
        if not open_ended:
            await call.done_writing()
        first = await call.read()
        if first is grpc.aio.EOF:
            if await call.code() is grpc.StatusCode.OK:
                return None
            raise grpc.aio.AioRpcError(
                await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
            )
        call.cancel()
        return first

    async def watch(self, **create: Any) -> Any:
        request = pb.WatchRequest(create_request=pb.WatchCreateRequest(**create))
        return await self.stream("etcdserverpb.Watch/Watch", request, pb.WatchResponse)


def _bytes_of(request: Any) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


@contextlib.asynccontextmanager
async def raw(shared_etcd: Any, user: str) -> AsyncIterator[Raw]:
    async with shared_etcd.client(user):
        pem = Credentials.in_directory(shared_etcd.directory / user).read()
    tls = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
    async with grpc.aio.secure_channel(shared_etcd.url.removeprefix("https://"), tls) as channel:
        yield Raw(channel)


async def outcome(asked: Awaitable[Any]) -> str:
    """Return `ok`, or the details of etcd's error."""
    try:
        await asked
    except grpc.aio.AioRpcError as error:
        return str(error.details())
    return "ok"


@pytest.fixture
async def tenants(shared_etcd: Any) -> AsyncIterator[tuple[Raw, Raw, int]]:
    """Raw connections as tenant `a` and as root, among neighbours with data; and a neighbour's lease with a key."""
    for path in ("a", "aa", "a-b"):
        await shared_etcd.keyspace.grant(path, prefix=f"/clusters/{path}/")
    async with raw(shared_etcd, "a") as tenant, raw(shared_etcd, "root") as root:
        for prefix in (OWN, *FOREIGN):
            await put(root, key=prefix + b"secret", value=b"value")
        granted = await root.ask("etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=600), pb.LeaseGrantResponse)
        await put(root, key=b"/clusters/aa/leased", value=b"value", lease=granted.ID)
        yield tenant, root, granted.ID


async def put(who: Raw, **request: Any) -> Any:
    return await who.ask("etcdserverpb.KV/Put", pb.PutRequest(**request), pb.PutResponse)


async def get(who: Raw, **request: Any) -> Any:
    return await who.ask("etcdserverpb.KV/Range", pb.RangeRequest(**request), pb.RangeResponse)


async def txn(who: Raw, **request: Any) -> Any:
    return await who.ask("etcdserverpb.KV/Txn", pb.TxnRequest(**request), pb.TxnResponse)


async def test_tenant_reads_writes_and_watches_its_own_keys(tenants: Any) -> None:
    tenant, root, _ = tenants
    own = {"key": OWN, "range_end": OWN_END}
    assert (await get(tenant, **own)).count == 1
    assert (await get(tenant, **own, serializable=True, revision=1)).count == 0
    watched = await tenant.watch(**own)
    assert (watched.created, watched.canceled) == (True, False)
    granted = await tenant.ask("etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=600), pb.LeaseGrantResponse)
    await put(tenant, key=OWN + b"leased", value=b"", lease=granted.ID)
    written = pb.RequestOp(request_put=pb.PutRequest(key=OWN + b"b", value=b""))
    assert (await txn(tenant, compare=[_compare(OWN + b"b", version=0)], success=[written])).succeeded
    revoke = pb.LeaseRevokeRequest(ID=granted.ID)
    await tenant.ask("etcdserverpb.Lease/LeaseRevoke", revoke, pb.LeaseRevokeResponse)
    deleted = await tenant.ask(
        "etcdserverpb.KV/DeleteRange", pb.DeleteRangeRequest(**own, prev_kv=True), pb.DeleteRangeResponse
    )
    assert {pair.key for pair in deleted.prev_kvs} == {OWN + b"secret", OWN + b"b"}
    assert (await get(root, **EVERYTHING, count_only=True)).count == len(FOREIGN) + 1


FOREIGN_RANGES = [
    *({"key": prefix + b"secret"} for prefix in FOREIGN),
    *({"key": prefix, "range_end": prefix[:-1] + b"0"} for prefix in FOREIGN),
    {"key": b"/clusters/a"},
    {"key": b"/clusters/a", "range_end": OWN_END},
    {"key": OWN, "range_end": b"/clusters/a1"},
    {"key": OWN, "range_end": b"/clusters/aa/z"},
    {"key": OWN, "range_end": b"\0"},
    {"key": OWN_END},
    {"key": b"/clusters/", "range_end": b"/clusters0"},
    {"key": b"health"},
    EVERYTHING,
]


def _compare(key: bytes, *, range_end: bytes = b"", version: int) -> pb.Compare:
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.VERSION, key=key, range_end=range_end, version=version)


async def test_a_tenant_reaches_no_other_key_by_any_call(tenants: Any) -> None:
    tenant, root, _ = tenants
    before = (await get(root, **EVERYTHING)).kvs
    let_through = []
    for foreign in FOREIGN_RANGES:
        outcomes = [await outcome(call) for call in _calls(tenant, foreign)]
        let_through += [(foreign, number, result) for number, result in enumerate(outcomes) if REFUSED not in result]
        watched = await tenant.watch(**foreign, start_revision=1, prev_kv=True)
        if not watched.canceled or watched.events or REFUSED not in watched.cancel_reason:
            let_through.append((foreign, "watch", watched))
    assert let_through == []
    assert (await get(root, **EVERYTHING)).kvs == before


def _calls(tenant: Raw, foreign: dict[str, bytes]) -> Iterator[Awaitable[Any]]:
    """Yield every call that reaches a key or a range, except for a watch."""
    for options in ({}, {"serializable": True}, {"count_only": True}, {"keys_only": True, "limit": 1}, {"revision": 2}):
        yield get(tenant, **foreign, **options)
    delete = pb.DeleteRangeRequest(**foreign, prev_kv=True)
    yield tenant.ask("etcdserverpb.KV/DeleteRange", delete, pb.DeleteRangeResponse)

    read = pb.RequestOp(request_range=pb.RangeRequest(**foreign))
    operations = [read, pb.RequestOp(request_delete_range=delete)]
    if "range_end" not in foreign:
        yield put(tenant, **foreign, value=b"x")
        yield put(tenant, **foreign, ignore_value=True, prev_kv=True)
        operations += [
            pb.RequestOp(request_put=pb.PutRequest(key=foreign["key"], value=b"x")),
            pb.RequestOp(request_put=pb.PutRequest(key=foreign["key"], prev_kv=True, ignore_value=True)),
        ]
    compared = {"compare": [_compare(foreign["key"], range_end=foreign.get("range_end", b""), version=1)]}
    yield txn(tenant, **compared)
    for operation in operations:
        yield txn(tenant, success=[operation])
        # A branch that is not taken is refused as well: the choice of the branch would reveal information.
        yield txn(tenant, failure=[operation])
    nested = [pb.TxnRequest(**compared)]
    for operation in operations:
        nested += [pb.TxnRequest(success=[operation]), pb.TxnRequest(failure=[operation])]
    for request in nested:
        inner = pb.RequestOp(request_txn=request)
        yield txn(tenant, success=[inner])
        yield txn(tenant, failure=[inner])
        yield txn(tenant, success=[pb.RequestOp(request_txn=pb.TxnRequest(failure=[inner]))])
        # The foreign operation follows a permitted operation.
        yield txn(tenant, success=[pb.RequestOp(request_range=pb.RangeRequest(key=OWN + b"x")), inner])


LEASE = "etcdserverpb.Lease/"
MAINTENANCE = "etcdserverpb.Maintenance/"
AUTH = "etcdserverpb.Auth/"
CLUSTER = "etcdserverpb.Cluster/"
PERMISSION = {"permType": pb.Permission.READWRITE, "key": b"\0", "range_end": b"\0"}
URLS = ["https://127.0.0.1:1"]

ADMINISTRATORS_ONLY = [
    ("etcdserverpb.KV/Compact", pb.CompactionRequest(revision=1), pb.CompactionResponse),
    (f"{LEASE}LeaseLeases", pb.LeaseLeasesRequest(), pb.LeaseLeasesResponse),
    (f"{MAINTENANCE}Alarm", pb.AlarmRequest(action=pb.AlarmRequest.ACTIVATE, alarm=pb.NOSPACE), pb.AlarmResponse),
    (f"{MAINTENANCE}Alarm", pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, alarm=pb.NOSPACE), pb.AlarmResponse),
    (f"{MAINTENANCE}Defragment", pb.DefragmentRequest(), pb.DefragmentResponse),
    (f"{MAINTENANCE}Hash", pb.HashRequest(), pb.HashResponse),
    (f"{MAINTENANCE}HashKV", pb.HashKVRequest(), pb.HashKVResponse),
    (f"{MAINTENANCE}MoveLeader", pb.MoveLeaderRequest(targetID=1), pb.MoveLeaderResponse),
    (f"{MAINTENANCE}Downgrade", pb.DowngradeRequest(version="3.5.0"), pb.DowngradeResponse),
    (f"{AUTH}AuthStatus", pb.AuthStatusRequest(), pb.AuthStatusResponse),
    (f"{AUTH}AuthEnable", pb.AuthEnableRequest(), pb.AuthEnableResponse),
    (f"{AUTH}AuthDisable", pb.AuthDisableRequest(), pb.AuthDisableResponse),
    (f"{AUTH}UserList", pb.AuthUserListRequest(), pb.AuthUserListResponse),
    (f"{AUTH}UserGet", pb.AuthUserGetRequest(name="aa"), pb.AuthUserGetResponse),
    (f"{AUTH}UserGet", pb.AuthUserGetRequest(name="root"), pb.AuthUserGetResponse),
    (f"{AUTH}UserAdd", pb.AuthUserAddRequest(name="z", password="z"), pb.AuthUserAddResponse),
    (f"{AUTH}UserDelete", pb.AuthUserDeleteRequest(name="aa"), pb.AuthUserDeleteResponse),
    (
        f"{AUTH}UserChangePassword",
        pb.AuthUserChangePasswordRequest(name="a", password="z"),
        pb.AuthUserChangePasswordResponse,
    ),
    (f"{AUTH}UserGrantRole", pb.AuthUserGrantRoleRequest(user="a", role="root"), pb.AuthUserGrantRoleResponse),
    (f"{AUTH}UserRevokeRole", pb.AuthUserRevokeRoleRequest(name="aa", role="aa"), pb.AuthUserRevokeRoleResponse),
    (f"{AUTH}RoleList", pb.AuthRoleListRequest(), pb.AuthRoleListResponse),
    (f"{AUTH}RoleGet", pb.AuthRoleGetRequest(role="aa"), pb.AuthRoleGetResponse),
    (f"{AUTH}RoleAdd", pb.AuthRoleAddRequest(name="z"), pb.AuthRoleAddResponse),
    (f"{AUTH}RoleDelete", pb.AuthRoleDeleteRequest(role="aa"), pb.AuthRoleDeleteResponse),
    (
        f"{AUTH}RoleGrantPermission",
        pb.AuthRoleGrantPermissionRequest(name="a", perm=pb.Permission(**PERMISSION)),
        pb.AuthRoleGrantPermissionResponse,
    ),
    (
        f"{AUTH}RoleRevokePermission",
        pb.AuthRoleRevokePermissionRequest(role="aa", key=b"/clusters/aa/", range_end=b"/clusters/aa0"),
        pb.AuthRoleRevokePermissionResponse,
    ),
    (f"{CLUSTER}MemberAdd", pb.MemberAddRequest(peerURLs=URLS, isLearner=True), pb.MemberAddResponse),
    (f"{CLUSTER}MemberRemove", pb.MemberRemoveRequest(ID=1), pb.MemberRemoveResponse),
    (f"{CLUSTER}MemberUpdate", pb.MemberUpdateRequest(ID=1, peerURLs=URLS), pb.MemberUpdateResponse),
    (f"{CLUSTER}MemberPromote", pb.MemberPromoteRequest(ID=1), pb.MemberPromoteResponse),
    # Field 1 of each request is the name of a lock or an election: a prefix of keys, or a key.
    ("v3lockpb.Lock/Lock", b"\n\x0c/clusters/aa", pb.PutResponse),
    ("v3lockpb.Lock/Unlock", b"\n\x13/clusters/aa/secret", pb.PutResponse),
    ("v3electionpb.Election/Leader", b"\n\x0c/clusters/aa", pb.PutResponse),
    ("v3electionpb.Election/Campaign", b"\n\x0c/clusters/aa\x1a\x01x", pb.PutResponse),
    # Field 1 of each request is a leader, and field 2 of the leader is its key.
    ("v3electionpb.Election/Proclaim", b"\n\x15\x12\x13/clusters/aa/secret\x12\x01x", pb.PutResponse),
    ("v3electionpb.Election/Resign", b"\n\x15\x12\x13/clusters/aa/secret", pb.PutResponse),
]

KV = "etcdserverpb.KV/"
WATCH = "etcdserverpb.Watch/Watch"
HEALTH = "grpc.health.v1.Health/"
NO_DATA = {f"{HEALTH}{name}" for name in ("Check", "List", "Watch")}
"""Calls about the health of the server, without requests about keys or users."""
PLACED = {
    "test_a_tenant_reaches_no_other_key_by_any_call": {
        WATCH,
        *(f"{KV}{name}" for name in ("Range", "Put", "DeleteRange", "Txn")),
    },
    "test_what_concerns_all_is_for_administrators": {method for method, *_ in ADMINISTRATORS_ONLY},
    "test_no_snapshot_and_no_way_in_by_a_name": {
        f"{MAINTENANCE}Snapshot",
        "v3electionpb.Election/Observe",
        f"{AUTH}Authenticate",
    },
    "test_a_neighbours_lease_with_keys_is_as_safe_as_its_keys": {
        f"{LEASE}{name}" for name in ("LeaseRevoke", "LeaseKeepAlive", "LeaseTimeToLive")
    },
    "test_the_known_limits_are_these": {f"{LEASE}LeaseGrant", f"{MAINTENANCE}Status", f"{CLUSTER}MemberList"},
}


async def test_every_call_of_the_etcd_server_is_assigned_to_a_test(shared_etcd: Any) -> None:
    """The metrics list calls of locks and elections only after their first use, because etcd registers them later."""
    port = shared_etcd.address.ports["metrics"]
    with await asyncio.to_thread(urllib.request.urlopen, f"http://{shared_etcd.address.host}:{port}/metrics") as answer:
        metrics = answer.read().decode()
    methods = re.findall(
        r'^grpc_server_started_total{grpc_method="(\w+)",grpc_service="([\w.]+)"', metrics, re.MULTILINE
    )
    served = {f"{service}/{method}" for method, service in methods}
    assert len(served) > 40
    assert served - NO_DATA - set().union(*PLACED.values()) == set()
    assert PLACED.keys() <= globals().keys()


async def test_what_concerns_all_is_for_administrators(tenants: Any) -> None:
    tenant, root, _ = tenants
    before = await _state(root)
    outcomes = [(method, await outcome(tenant.ask(method, *rest))) for method, *rest in ADMINISTRATORS_ONLY]
    assert [(method, answer) for method, answer in outcomes if REFUSED not in answer] == []
    assert await _state(root) == before


async def test_no_snapshot_and_no_way_in_by_a_name(tenants: Any) -> None:
    tenant, _, _ = tenants
    snapshot = tenant.stream(f"{MAINTENANCE}Snapshot", pb.SnapshotRequest(), pb.SnapshotResponse, open_ended=False)
    assert REFUSED in await outcome(snapshot)
    observed = tenant.stream("v3electionpb.Election/Observe", b"\n\x0c/clusters/aa", pb.PutResponse, open_ended=False)
    # etcd ends this stream without an error.
    assert await observed is None
    for name in ("root", "aa", "a"):
        login = pb.AuthenticateRequest(name=name, password="")
        assert "authentication failed" in await outcome(
            tenant.ask(f"{AUTH}Authenticate", login, pb.AuthenticateResponse)
        )


async def test_a_neighbours_lease_with_keys_is_as_safe_as_its_keys(tenants: Any) -> None:
    tenant, root, lease = tenants
    calls = (
        tenant.ask(f"{LEASE}LeaseRevoke", pb.LeaseRevokeRequest(ID=lease), pb.LeaseRevokeResponse),
        tenant.stream(f"{LEASE}LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=lease), pb.LeaseKeepAliveResponse),
        tenant.ask(
            f"{LEASE}LeaseTimeToLive", pb.LeaseTimeToLiveRequest(ID=lease, keys=True), pb.LeaseTimeToLiveResponse
        ),
        # A tenant whose own key were attached to the neighbour's lease would control the lease as well.
        put(tenant, key=OWN + b"attached", value=b"", lease=lease),
        txn(tenant, success=[pb.RequestOp(request_put=pb.PutRequest(key=OWN + b"attached", lease=lease))]),
    )
    for call in calls:
        assert REFUSED in await outcome(call)
    response = await get(root, key=b"/clusters/aa/leased")
    assert [pair.lease for pair in response.kvs] == [lease]


async def test_the_known_limits_are_these(tenants: Any) -> None:
    """etcd answers these calls for every user, and docs/reference/security-limits.md names them."""
    tenant, root, lease = tenants
    lease_status = await tenant.ask(
        f"{LEASE}LeaseTimeToLive", pb.LeaseTimeToLiveRequest(ID=lease), pb.LeaseTimeToLiveResponse
    )
    assert lease_status.TTL > 0
    assert not lease_status.keys
    bare = (await root.ask(f"{LEASE}LeaseGrant", pb.LeaseGrantRequest(TTL=600), pb.LeaseGrantResponse)).ID
    await tenant.ask(f"{LEASE}LeaseRevoke", pb.LeaseRevokeRequest(ID=bare), pb.LeaseRevokeResponse)

    status = await tenant.ask(f"{MAINTENANCE}Status", pb.StatusRequest(), pb.StatusResponse)
    assert status.dbSize > 0
    assert not (await tenant.ask(f"{MAINTENANCE}Alarm", pb.AlarmRequest(), pb.AlarmResponse)).alarms
    members = await tenant.ask(f"{CLUSTER}MemberList", pb.MemberListRequest(), pb.MemberListResponse)
    assert [member.name for member in members.members] == ["member"]
    user = await tenant.ask(f"{AUTH}UserGet", pb.AuthUserGetRequest(name="a"), pb.AuthUserGetResponse)
    assert list(user.roles) == ["a"]
    role = await tenant.ask(f"{AUTH}RoleGet", pb.AuthRoleGetRequest(role="a"), pb.AuthRoleGetResponse)
    assert [(permission.key, permission.range_end) for permission in role.perm] == [(OWN, OWN_END)]


async def test_peer_port_accepts_only_the_certificate_of_etcd(shared_etcd: Any, tmp_path: Path) -> None:
    """A peer may write any key, past the access control."""
    await shared_etcd.keyspace.grant("a", prefix="/clusters/a/")
    files = shared_etcd.component.files
    own = KeyPair(files["server.crt"].content, files["server.key"].content)
    # A clusterPath may equal the name in etcd's own certificate.
    pairs = {user: issue_client(shared_etcd.authority, user=user) for user in ("a", "etcd", "root")} | {"own": own}
    opens = [
        user
        for user, pair in pairs.items()
        if await opens_peer_port(
            shared_etcd.address, ca=shared_etcd.authority.certificate, pair=pair, directory=tmp_path
        )
    ]
    assert opens == ["own"]


async def test_certificate_without_etcd_user_reaches_no_key_or_call(tenants: Any, shared_etcd: Any) -> None:
    _, root, _ = tenants
    before = await _state(root)
    for user in ("nobody", "member", "A", "a0"):
        async with raw(shared_etcd, user) as stranger:
            calls = [
                call for foreign in (*FOREIGN_RANGES, {"key": OWN + b"secret"}) for call in _calls(stranger, foreign)
            ]
            calls += [stranger.ask(method, *rest) for method, *rest in ADMINISTRATORS_ONLY]
            outcomes = {await outcome(call) for call in calls}
            assert {answer for answer in outcomes if REFUSED not in answer and NO_USER not in answer} == set()
            watched = await stranger.watch(**EVERYTHING)
            assert watched.canceled
    assert await _state(root) == before


async def _state(root: Raw) -> Any:
    """Return all state that a call might have changed."""
    users = (await root.ask(f"{AUTH}UserList", pb.AuthUserListRequest(), pb.AuthUserListResponse)).users
    status = await root.ask(f"{AUTH}AuthStatus", pb.AuthStatusRequest(), pb.AuthStatusResponse)
    members = await root.ask(f"{CLUSTER}MemberList", pb.MemberListRequest(), pb.MemberListResponse)
    alarms = await root.ask(f"{MAINTENANCE}Alarm", pb.AlarmRequest(), pb.AlarmResponse)
    return (
        list((await get(root, **EVERYTHING)).kvs),
        list(users),
        (status.enabled, status.authRevision),
        list(members.members),
        list(alarms.alarms),
    )
