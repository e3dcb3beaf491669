"""Components as pods of a Kubernetes cluster."""

from kplane.workloads.pods.runtime import PodRuntime
from kplane.workloads.pods.settings import Expose, Image, Placement, PodSettings

__all__ = ["Expose", "Image", "Placement", "PodRuntime", "PodSettings"]
