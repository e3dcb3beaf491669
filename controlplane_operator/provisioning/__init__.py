"""The programs and the storage behind a control plane that kplane runs itself."""

from controlplane_operator.provisioning.apiserver import (
    API_SERVER,
    API_SERVER_PORTS,
    API_SERVER_RESOURCES,
    DNS_ADDRESS,
    SERVICE_RANGE,
    api_server_component,
    external_url,
    server_url,
    serving_hosts,
)
from controlplane_operator.provisioning.etcd import (
    DEFAULT_QUOTA_BYTES,
    ETCD_PORTS,
    EtcdAccess,
    client_url,
    etcd_component,
)
from controlplane_operator.provisioning.keyspace import Keyspace, key_prefix
from controlplane_operator.provisioning.mcm import MCM, MCM_PORTS, MCM_RESOURCES, McmProgram, mcm_component

__all__ = [
    "API_SERVER",
    "API_SERVER_PORTS",
    "API_SERVER_RESOURCES",
    "DEFAULT_QUOTA_BYTES",
    "DNS_ADDRESS",
    "ETCD_PORTS",
    "MCM",
    "MCM_PORTS",
    "MCM_RESOURCES",
    "SERVICE_RANGE",
    "EtcdAccess",
    "Keyspace",
    "McmProgram",
    "api_server_component",
    "client_url",
    "etcd_component",
    "external_url",
    "key_prefix",
    "mcm_component",
    "server_url",
    "serving_hosts",
]
