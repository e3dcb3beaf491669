"""Backends: the API servers, etcds and proxies of control planes, and the data that they keep."""
