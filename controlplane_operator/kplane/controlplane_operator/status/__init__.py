"""Conditions, statuses and Events of the objects."""
