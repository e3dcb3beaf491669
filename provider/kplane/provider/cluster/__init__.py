"""A cluster: its description with client and cache, and the engagement that owns the tasks on it."""
