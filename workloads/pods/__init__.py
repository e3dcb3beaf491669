"""Components as pods of a Kubernetes cluster."""

from workloads.pods.pod_runtime import PodRuntime
from workloads.pods.settings import Expose, Image, Placement, PodSettings

__all__ = ["Expose", "Image", "Placement", "PodRuntime", "PodSettings"]
