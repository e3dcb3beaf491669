"""Runs the handlers of a kopf operator against a fleet."""
