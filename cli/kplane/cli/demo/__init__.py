"""The demo: starts the whole suite on this machine, verifies each step, and ends everything."""
