"""The flags of leader election."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from kplane.controlplane_operator.errors import SettingsError
from kplane.provider.coordination.lease import LeaseTimings

__all__ = ["ElectionSettings", "add_election_flags", "election_settings"]

_DEFAULTS = LeaseTimings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSettings:
    """The Lease that the working one of several operators holds."""

    namespace: str
    name: str
    timings: LeaseTimings


def add_election_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags, named as those of kube-controller-manager."""
    group = parser.add_argument_group("leader election")
    group.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="work only while a Lease in --namespace is held (default: with --runtime pods; processes are kept to one"
        " operator by --state-dir)",
    )
    group.add_argument("--leader-elect-resource-name", default="kplane-operator", metavar="NAME", help="of the Lease")
    group.add_argument(
        "--leader-elect-lease-seconds",
        type=int,
        default=_DEFAULTS.duration_seconds,
        metavar="SECONDS",
        help="after which another operator takes over from one that is gone",
    )
    group.add_argument(
        "--leader-elect-renew-deadline-seconds",
        type=float,
        default=_DEFAULTS.renew_deadline_seconds,
        metavar="SECONDS",
        help="after which an operator that cannot renew the Lease ends",
    )
    group.add_argument(
        "--leader-elect-retry-seconds",
        type=float,
        default=_DEFAULTS.retry_seconds,
        metavar="SECONDS",
        help="between renewals, and between looks at another's Lease",
    )


def election_settings(given: argparse.Namespace) -> ElectionSettings | None:
    """Return what the flags say; None where no Lease is asked for. Raises SettingsError with a sentence."""
    wanted = given.leader_elect if given.leader_elect is not None else given.runtime == "pods"
    try:
        timings = LeaseTimings(
            duration_seconds=given.leader_elect_lease_seconds,
            renew_deadline_seconds=given.leader_elect_renew_deadline_seconds,
            retry_seconds=given.leader_elect_retry_seconds,
        )
    except ValueError as error:
        raise SettingsError(f"--leader-elect-lease-seconds: {error}") from error
    if not wanted:
        return None
    return ElectionSettings(namespace=given.namespace, name=given.leader_elect_resource_name, timings=timings)
