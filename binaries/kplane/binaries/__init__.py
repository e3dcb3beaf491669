"""Finds the programs of Kubernetes, etcd, Helm, kind and kwok, and obtains missing programs."""
