"""Snapshots of single control planes: creation, storage and deletion of the data of ControlPlaneSnapshots."""
