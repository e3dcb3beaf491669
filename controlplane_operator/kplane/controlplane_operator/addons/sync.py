"""Pass over the add-ons of a control plane: installs missing add-ons, and removes former add-ons."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

from kplane.api.reasons import Reason
from kplane.controlplane_operator.addons.builtin import BUILT_IN, TenantFacts, render_built_in
from kplane.controlplane_operator.addons.bundles import Bundles
from kplane.controlplane_operator.addons.installation import Installation
from kplane.controlplane_operator.addons.manifest import Bundle
from kplane.controlplane_operator.errors import BootstrapFailed
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.provider import Client, ProviderError, Unreachable
from kplane.provider.errors import Unauthorized

__all__ = ["AddonSync"]

_PASS_SECONDS: Final = 45.0
"""Time after which a pass starts no further add-on. The next pass starts with the remaining add-ons."""
_MAX_TOLD: Final = 5


class AddonSync:
    """Pass over all add-ons of a control plane. `until` is the time at which an add-on needs another pass."""

    def __init__(self, client: Client, *, bundles: Bundles, facts: TenantFacts) -> None:
        self.until: datetime | None = None
        self._client = client
        self._bundles = bundles
        self._facts = facts
        self._installation = Installation(client)
        self._failures: dict[str, ConditionError] = {}
        self._not_begun: dict[str, ConditionError] = {}
        self._ends = time.monotonic() + _PASS_SECONDS

    async def all(self, wanted: list[str], *, last: list[str]) -> dict[str, ConditionError]:
        """Install, prune and uninstall. Add-ons in `last` come after the others. Returns the failures by add-on.

        While a new add-on in `wanted` does not exist, no add-on is uninstalled. Raises ProviderError if the control
        plane is unreachable or denies all requests.
        """
        installed = await self._installation.begin()
        for addon in sorted(wanted, key=lambda addon: last.index(addon) + 1 if addon in last else 0):
            if self._begins(addon):
                await self._install(addon)
        for addon in [addon for addon in wanted if addon not in {**self._failures, **self._not_begun}]:
            if self._begins(addon):
                self._note(addon, await self._installation.prune(addon))
        superfluous = [addon for addon in installed if addon not in wanted]
        if superfluous and self._keeps(superfluous, installed=installed):
            superfluous = []
        for addon in superfluous:
            if self._begins(addon):
                self._note(addon, await self._installation.uninstall(addon))
        # The order is used for the next pass: add-ons that were not started come first.
        return {**self._not_begun, **self._failures}

    async def _install(self, addon: str) -> None:
        try:
            bundle = await self._bundle(addon)
        except ConditionError as failure:
            self._failures[addon] = failure
        except (Unreachable, Unauthorized):
            raise
        except (BootstrapFailed, ProviderError) as error:
            self._failures[addon] = ConditionError(Reason.ADDON_FAILED, str(error))
        else:
            self._note(addon, await self._installation.install(addon, bundle))

    def _keeps(self, superfluous: list[str], *, installed: list[str]) -> bool:
        """Return whether former add-ons stay, because a new add-on in the list of the class is unknown.

        A typo in the name of an add-on removes the add-on from the list. Without this rule, the add-on would be removed
        from each control plane of the class without a replacement.
        """
        unknown = {
            addon: failure
            for addon, failure in self._failures.items()
            if failure.reason is Reason.ADDON_UNKNOWN and addon not in installed
        }
        for addon, failure in unknown.items():
            consequence = f"{', '.join(superfluous)}, which the class does not list any more, stays until then"
            self._failures[addon] = ConditionError(failure.reason, f"{failure.message}; {consequence}")
        return bool(unknown)

    async def _bundle(self, addon: str) -> Bundle:
        if addon not in BUILT_IN:
            return await self._bundles.find(addon)
        rendered = await render_built_in(addon, self._client, facts=self._facts)
        self.until = rendered.until if rendered.until is not None else self.until
        return rendered.bundle

    def _begins(self, addon: str) -> bool:
        if time.monotonic() < self._ends:
            return True
        self._not_begun[addon] = ConditionError(Reason.ADDON_FAILED, "not looked at yet, because others took too long")
        return False

    def _note(self, addon: str, failures: list[str]) -> None:
        if failures:
            more = len(failures) - _MAX_TOLD
            message = ", ".join(failures[:_MAX_TOLD]) + (f", and {more} more" if more > 0 else "")
            self._failures[addon] = ConditionError(Reason.ADDON_FAILED, message)
