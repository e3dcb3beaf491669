"""Manager: runs a provider, a coordinator and controllers together."""
