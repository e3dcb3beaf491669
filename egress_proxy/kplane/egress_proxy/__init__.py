"""The HTTP CONNECT proxy between an API server and the destinations that its class allows."""
