"""A tenant's keys in etcd: read, write, put back to a template, compare. See README.md of this component."""

from kplane.data.access import Access, Permission, Status
from kplane.data.client import MAX_OPERATIONS, Client, Delete, KeyValue, Operation, Page, Put
from kplane.data.compare import Digest, digest
from kplane.data.credentials import Credentials
from kplane.data.errors import (
    AlreadyExists,
    Compacted,
    CredentialsUnusable,
    DataError,
    EtcdError,
    InvalidPrefix,
    NotFound,
    PermissionDenied,
    TimedOut,
    Unreachable,
)
from kplane.data.template import Reset, Template, reset

__all__ = [
    "MAX_OPERATIONS",
    "Access",
    "AlreadyExists",
    "Client",
    "Compacted",
    "Credentials",
    "CredentialsUnusable",
    "DataError",
    "Delete",
    "Digest",
    "EtcdError",
    "InvalidPrefix",
    "KeyValue",
    "NotFound",
    "Operation",
    "Page",
    "Permission",
    "PermissionDenied",
    "Put",
    "Reset",
    "Status",
    "Template",
    "TimedOut",
    "Unreachable",
    "digest",
    "reset",
]
