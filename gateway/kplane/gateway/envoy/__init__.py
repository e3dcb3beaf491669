"""Envoy's configuration as pure functions of routes. They read and write no files."""
