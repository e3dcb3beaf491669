"""Messages of etcd's API: generated, see etcd.proto."""
