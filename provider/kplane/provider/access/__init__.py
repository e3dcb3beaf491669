"""How a process reaches a cluster and authenticates to it: kubeconfigs, tokens, plugins."""
