"""Lifecycle of an instance."""
