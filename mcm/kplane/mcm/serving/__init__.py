"""Metrics of mcm and of its instances."""
