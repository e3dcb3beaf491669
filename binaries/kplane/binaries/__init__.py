"""Finds the programs of Kubernetes, etcd, Helm and kind, and obtains the missing ones."""
