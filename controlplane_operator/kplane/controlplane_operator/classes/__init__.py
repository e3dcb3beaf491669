"""Reconciles ControlPlaneClass."""
