"""Runs providers and controllers together."""
