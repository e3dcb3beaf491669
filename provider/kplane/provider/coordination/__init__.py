"""Coordinators: decide which process works on which cluster, if several processes run the same manager."""
