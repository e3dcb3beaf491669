"""Which mcm serves which control plane."""
