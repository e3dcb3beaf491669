"""Finds the programs of Kubernetes, etcd, Helm and kind, and obtains those that are absent."""
