"""Where mcm finds the control planes that it serves."""
