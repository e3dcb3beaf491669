"""Reconcilers of ControlPlaneRegistration."""
