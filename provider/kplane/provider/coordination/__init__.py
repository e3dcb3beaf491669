"""Decides which process works on which cluster, if several run the same manager."""
