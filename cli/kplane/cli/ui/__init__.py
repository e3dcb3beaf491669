"""Page of `kplane ui`, which shows the control planes of a management cluster."""
