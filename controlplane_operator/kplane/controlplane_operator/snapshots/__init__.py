"""Snapshots of single control planes: taken, kept and deleted as ControlPlaneSnapshots."""
