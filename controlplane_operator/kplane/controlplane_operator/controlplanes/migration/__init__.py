"""Moves the data of control planes to another home while they are in use."""
