"""Backups of the shared etcd and of the keys of control planes: `python -m kplane.controlplane_operator.backup`.

An encrypted backup is an age file of a tar archive, so `age -d` and `tar` open it without kplane. The cluster has only
the public keys (recipients).
"""
