"""A client for one API server."""
