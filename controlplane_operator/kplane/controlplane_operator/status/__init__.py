"""Writes conditions, status and Events."""
