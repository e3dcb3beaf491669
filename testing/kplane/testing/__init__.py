"""A Kubernetes cluster in tests: a pytest plugin for whoever writes an operator. docs/testing.md tells how to use it.

pytest loads `kplane.testing.plugin` in every run, so nothing is imported here, and little there.
"""
