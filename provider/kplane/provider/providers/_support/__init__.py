"""Shared parts of providers."""
