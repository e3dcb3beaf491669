"""The end-to-end suite: what users do, by real kubectl and kubeconfigs, on any backend. Imports nothing of kplane."""
