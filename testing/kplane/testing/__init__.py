"""Gives tests a Kubernetes cluster, through a pytest plugin. docs/testing is the guide.

pytest loads `kplane.testing.plugin` in each run, so this module imports nothing, and the plugin little.
"""
