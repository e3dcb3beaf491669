"""The etcd that virtual control planes share: who administers it, and where its certificates come from."""

from controlplane_operator.shared_etcd.access import SharedEtcd
from controlplane_operator.shared_etcd.keeper import CredentialsKeeper, service_endpoint

__all__ = ["CredentialsKeeper", "SharedEtcd", "service_endpoint"]
