"""ServiceAccounts before a sleep: the gateway's entry names those that exist, without their names."""

from __future__ import annotations

from typing import Any, cast

from kplane.controlplane_operator.hibernation.service_accounts import ServiceAccount, accounts_entry, list_accounts
from kplane.gateway.tokens import Account, ServiceAccounts
from kplane.provider import Client
from kplane.provider.client.listing import ObjectList
from kplane.provider.errors import AnswerTooLarge


class Tenant:
    """Fake API server with this number of ServiceAccounts."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def list(self, resource: Any, *, metadata_only: bool, max_items: int) -> ObjectList:
        assert (resource.plural, metadata_only) == ("serviceaccounts", True)
        if self._count > max_items:
            raise AnswerTooLarge("too many")
        return ObjectList([{"metadata": _metadata(number)} for number in reversed(range(self._count))], "1")


def _metadata(number: int) -> dict[str, str]:
    return {"namespace": "default", "name": f"a{number}", "uid": str(number)}


async def test_accounts_are_listed_sorted_up_to_1000() -> None:
    accounts = await list_accounts(cast("Client", Tenant(2)))
    assert accounts == (ServiceAccount("default", "a0", "0"), ServiceAccount("default", "a1", "1"))
    largest = await list_accounts(cast("Client", Tenant(1000)))
    assert largest is not None
    assert len(accounts_entry(largest)) < 36_000
    assert await list_accounts(cast("Client", Tenant(1001))) is None


def test_gateway_knows_accounts_by_uid_without_their_names() -> None:
    entry = accounts_entry([ServiceAccount("shop", "robot", "1")])
    record = ServiceAccounts.from_json(entry)
    assert record.have(Account("shop", "robot", "1"))
    for other in (Account("shop", "robot", "2"), Account("shop", "other", "1"), Account("default", "robot", "1")):
        assert not record.have(other)
    assert b"robot" not in entry
    assert accounts_entry([]) != accounts_entry([]), "the salt differs"
    assert not ServiceAccounts.from_json(accounts_entry([])).have(Account("shop", "robot", "1"))
