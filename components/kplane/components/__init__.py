"""Descriptions of the programs of a control plane, which `kplane.workloads` runs."""
