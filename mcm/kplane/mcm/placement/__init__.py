"""Placement: the distribution of control planes among several mcm."""
