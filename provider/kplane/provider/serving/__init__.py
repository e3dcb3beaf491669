"""Metrics and health over HTTP, and main functions of programs."""
