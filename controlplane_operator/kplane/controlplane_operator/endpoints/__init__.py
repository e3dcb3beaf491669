"""Reconciler of ControlPlaneEndpoint."""
