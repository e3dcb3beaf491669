"""Mirrors the objects of a cluster, and delivers their changes."""
