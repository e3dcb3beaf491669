"""Gives tests a Kubernetes cluster, through a pytest plugin. docs/testing is the guide.

pytest loads `kplane.testing.plugin` in each run. So this module has no imports, and the plugin has few.
"""
