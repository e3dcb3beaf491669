"""Measurements on real programs; each prints JSON."""
