"""Methods of etcd's API that this package calls: their names on the wire, and their messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from kplane.data._proto import etcd_pb2 as pb

__all__ = [
    "ALARM",
    "AUTH_DISABLE",
    "AUTH_ENABLE",
    "AUTH_STATUS",
    "COMPACT",
    "DEFRAGMENT",
    "DELETE_RANGE",
    "LEASE_GRANT",
    "LEASE_TIME_TO_LIVE",
    "MEMBER_ADD",
    "MEMBER_LIST",
    "MEMBER_PROMOTE",
    "MEMBER_REMOVE",
    "PUT",
    "RANGE",
    "ROLE_ADD",
    "ROLE_DELETE",
    "ROLE_GET",
    "ROLE_GRANT_PERMISSION",
    "ROLE_REVOKE_PERMISSION",
    "SNAPSHOT",
    "STATUS",
    "TXN",
    "USER_ADD",
    "USER_DELETE",
    "USER_GET",
    "USER_GRANT_ROLE",
    "USER_REVOKE_ROLE",
    "WATCH",
    "Method",
]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ResponseT]):
    """A method with its path and the types of its request and response."""

    path: str
    request: type[RequestT]
    response: type[ResponseT]


RANGE: Final = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
PUT: Final = Method("/etcdserverpb.KV/Put", pb.PutRequest, pb.PutResponse)
DELETE_RANGE: Final = Method("/etcdserverpb.KV/DeleteRange", pb.DeleteRangeRequest, pb.DeleteRangeResponse)
TXN: Final = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
COMPACT: Final = Method("/etcdserverpb.KV/Compact", pb.CompactionRequest, pb.CompactionResponse)

# Both the requests and the responses are streams.
WATCH: Final = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)

LEASE_GRANT: Final = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
LEASE_TIME_TO_LIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse
)

ALARM: Final = Method("/etcdserverpb.Maintenance/Alarm", pb.AlarmRequest, pb.AlarmResponse)
DEFRAGMENT: Final = Method("/etcdserverpb.Maintenance/Defragment", pb.DefragmentRequest, pb.DefragmentResponse)
STATUS: Final = Method("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse)
# The response is a stream.
SNAPSHOT: Final = Method("/etcdserverpb.Maintenance/Snapshot", pb.SnapshotRequest, pb.SnapshotResponse)

MEMBER_LIST: Final = Method("/etcdserverpb.Cluster/MemberList", pb.MemberListRequest, pb.MemberListResponse)
MEMBER_ADD: Final = Method("/etcdserverpb.Cluster/MemberAdd", pb.MemberAddRequest, pb.MemberAddResponse)
MEMBER_PROMOTE: Final = Method("/etcdserverpb.Cluster/MemberPromote", pb.MemberPromoteRequest, pb.MemberPromoteResponse)
MEMBER_REMOVE: Final = Method("/etcdserverpb.Cluster/MemberRemove", pb.MemberRemoveRequest, pb.MemberRemoveResponse)

AUTH_STATUS: Final = Method("/etcdserverpb.Auth/AuthStatus", pb.AuthStatusRequest, pb.AuthStatusResponse)
AUTH_DISABLE: Final = Method("/etcdserverpb.Auth/AuthDisable", pb.AuthDisableRequest, pb.AuthDisableResponse)
AUTH_ENABLE: Final = Method("/etcdserverpb.Auth/AuthEnable", pb.AuthEnableRequest, pb.AuthEnableResponse)
USER_ADD: Final = Method("/etcdserverpb.Auth/UserAdd", pb.AuthUserAddRequest, pb.AuthUserAddResponse)
USER_GET: Final = Method("/etcdserverpb.Auth/UserGet", pb.AuthUserGetRequest, pb.AuthUserGetResponse)
USER_DELETE: Final = Method("/etcdserverpb.Auth/UserDelete", pb.AuthUserDeleteRequest, pb.AuthUserDeleteResponse)
USER_GRANT_ROLE: Final = Method(
    "/etcdserverpb.Auth/UserGrantRole", pb.AuthUserGrantRoleRequest, pb.AuthUserGrantRoleResponse
)
USER_REVOKE_ROLE: Final = Method(
    "/etcdserverpb.Auth/UserRevokeRole", pb.AuthUserRevokeRoleRequest, pb.AuthUserRevokeRoleResponse
)
ROLE_ADD: Final = Method("/etcdserverpb.Auth/RoleAdd", pb.AuthRoleAddRequest, pb.AuthRoleAddResponse)
ROLE_GET: Final = Method("/etcdserverpb.Auth/RoleGet", pb.AuthRoleGetRequest, pb.AuthRoleGetResponse)
ROLE_DELETE: Final = Method("/etcdserverpb.Auth/RoleDelete", pb.AuthRoleDeleteRequest, pb.AuthRoleDeleteResponse)
ROLE_GRANT_PERMISSION: Final = Method(
    "/etcdserverpb.Auth/RoleGrantPermission", pb.AuthRoleGrantPermissionRequest, pb.AuthRoleGrantPermissionResponse
)
ROLE_REVOKE_PERMISSION: Final = Method(
    "/etcdserverpb.Auth/RoleRevokePermission", pb.AuthRoleRevokePermissionRequest, pb.AuthRoleRevokePermissionResponse
)
