"""Add-ons: what the control planes of a class have inside, besides what kplane itself needs."""

from controlplane_operator.addons.builtin import STARTER_ADDON, TenantFacts
from controlplane_operator.addons.bundle import Bundle, read_bundle
from controlplane_operator.addons.bundles import Bundles
from controlplane_operator.addons.installation import KEEP_ANNOTATION
from controlplane_operator.addons.look import Look

__all__ = ["KEEP_ANNOTATION", "STARTER_ADDON", "Bundle", "Bundles", "Look", "TenantFacts", "read_bundle"]
