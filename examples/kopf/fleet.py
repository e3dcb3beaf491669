"""Runs the operator of key_counts.py in each cluster that has a kubeconfig in the directory `clusters`."""

from __future__ import annotations

from importlib import import_module

from kplane.provider import Manager, run
from kplane.provider.contrib.kopf import KopfAware
from kplane.provider.providers.file import FileProvider

import_module("key_counts")  # its handlers register themselves
run(Manager(None, FileProvider(directories=["clusters"]), awares=[KopfAware()], name="fleet"))
