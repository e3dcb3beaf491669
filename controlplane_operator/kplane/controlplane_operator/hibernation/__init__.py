"""Control planes that sleep: no API server runs for them until a client needs one."""
