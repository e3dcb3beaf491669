"""Watches of the management cluster, which wake the reconcilers."""
