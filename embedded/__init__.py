"""A management cluster of plain processes: for the demo, for tests, for a laptop.

`embedded.cluster.ManagementCluster` runs one in this process, `embedded.daemon.Daemon` in a process of its own, and
`embedded.handle.Handle` tells anybody how to reach it.
"""
