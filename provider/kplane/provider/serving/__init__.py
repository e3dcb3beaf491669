"""Serves metrics and health over HTTP."""
