"""Sleep of control planes: no API server runs for a sleeping control plane until a client needs it."""
