"""Follows the management cluster, and wakes reconcilers."""
