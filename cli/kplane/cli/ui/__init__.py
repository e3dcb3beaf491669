"""The page of `kplane ui`: the control planes of a management cluster, to look at."""
