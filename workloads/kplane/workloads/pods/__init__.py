"""Components as pods of a Kubernetes cluster."""

from kplane.workloads.pods.calls import is_leaving, unless_leaving
from kplane.workloads.pods.runtime import PodRuntime
from kplane.workloads.pods.settings import CLUSTER_DNS, Expose, Image, Placement, PodSettings

__all__ = ["CLUSTER_DNS", "Expose", "Image", "Placement", "PodRuntime", "PodSettings", "is_leaving", "unless_leaving"]
