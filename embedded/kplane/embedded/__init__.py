"""A management cluster of plain processes: for the demo, for tests, for a laptop.

`kplane.embedded.cluster.ManagementCluster` runs one in this process. `kplane.embedded.daemon.Daemon` runs one in a
process of its own. `kplane.embedded.handle.Handle` tells how to reach it.
"""
