"""Reconciles ControlPlane."""
