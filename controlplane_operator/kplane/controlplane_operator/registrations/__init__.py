"""Reconciles ControlPlaneRegistration."""
