"""The multicluster controller manager: one unmodified kube-controller-manager for every registered control plane."""
