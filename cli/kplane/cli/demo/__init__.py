"""Demo: starts the whole suite on this machine, verifies each step, and stops all processes."""
