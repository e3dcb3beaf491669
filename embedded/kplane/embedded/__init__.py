"""Runs a management cluster of plain processes for the demo, for tests and on a laptop.

`kplane.embedded.cluster.ManagementCluster` runs the cluster in this process, `kplane.embedded.daemon.Daemon` in a child
process. `kplane.embedded.handle.Handle` holds its addresses and the paths of its credentials.
"""
