"""Runs the operator of key_counts.py in each cluster that has a kubeconfig in the directory `clusters`."""

from __future__ import annotations

import key_counts  # noqa: F401 - its handlers register themselves

from kplane.provider import Manager, run
from kplane.provider.contrib.kopf import KopfAware
from kplane.provider.providers.file import FileProvider

run(Manager(None, FileProvider(directories=["clusters"]), awares=[KopfAware()], name="fleet"))
