"""Sources of the control planes that mcm serves."""
