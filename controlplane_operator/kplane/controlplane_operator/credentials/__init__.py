"""Keys, certificates and kubeconfigs of control planes."""
