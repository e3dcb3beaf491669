"""Reconciles ControlPlaneEndpoint."""
