"""A management cluster of plain processes: for the demo, for tests, for a laptop.

`kplane.embedded.cluster.ManagementCluster` runs one in this process, `kplane.embedded.daemon.Daemon` in a process of its own, and
`kplane.embedded.handle.Handle` tells anybody how to reach it.
"""
