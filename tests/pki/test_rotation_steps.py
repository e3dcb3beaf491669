"""Rotation of CAs and keys, step by step: authentication and trust at any mixture of two consecutive steps."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from kplane.api import RotationPhase
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.errors import CredentialsInvalid
from kplane.pki.generations import Generations
from kplane.pki.primitives import public_key
from kplane.pki.rotation import OVERLAP, Rotation, RotationWish, begun_with, next_rotation

START = dt.datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=dt.UTC)
OLD = TenantAuthorities.create("old")


def step(rotation: Rotation | None, **changes: Any) -> Rotation | None:
    arguments: dict[str, Any] = {"wish": RotationWish("a"), "settled": True, "now": START}
    return next_rotation(rotation, **(arguments | changes))


def exchange() -> list[Generations]:
    """Return the content of the Secret at each step."""
    stages, now = [Generations(OLD)], START
    while (following := next_rotation(stages[-1].rotation, wish=RotationWish("a"), settled=True, now=now)) is not None:
        stages.append(stages[-1].advanced(following, name="new"))
        now = max(now, following.drop_at or now)
    return stages


STAGES = exchange()


def test_rotation_goes_through_its_phases_once() -> None:
    assert [stage.rotation.phase for stage in STAGES[1:] if stage.rotation] == list(RotationPhase)
    assert step(STAGES[-1].rotation, now=START + dt.timedelta(days=400)) is None
    again = step(STAGES[-1].rotation, wish=RotationWish("b"))
    assert again is not None
    assert (again.value, again.phase) == ("b", RotationPhase.TRUSTING)


def test_new_value_waits_for_end_of_current_rotation() -> None:
    for stage in STAGES[1:-1]:
        following = step(stage.rotation, wish=RotationWish("b"), now=START + dt.timedelta(days=9))
        assert following is not None
        assert following.value == "a"


@pytest.mark.parametrize("value", [None, "", "x" * 64])
def test_invalid_value_begins_no_rotation(value: str | None) -> None:
    assert step(None, wish=RotationWish(value)) is None
    assert begun_with(value, now=START) is None


def test_keys_created_under_a_value_are_not_rotated_for_it() -> None:
    rotation = begun_with("a", now=START)
    assert step(rotation) is None
    assert step(rotation, wish=RotationWish("b")) is not None


def test_overlap_lasts_until_credentials_expire_or_user_finishes() -> None:
    late_expiry = START + dt.timedelta(days=30)
    for outlives, end in ((None, START + OVERLAP), (START, START + OVERLAP), (late_expiry, late_expiry)):
        overlapping = step(STAGES[1].rotation, outlives=outlives)
        assert overlapping is not None
        drop_at = overlapping.drop_at
        assert drop_at == end.replace(microsecond=0)
        assert step(overlapping, now=drop_at - dt.timedelta(seconds=1)) is None
        assert step(overlapping, wish=RotationWish("b", finish="b")) is None
        for over in ({"now": drop_at}, {"wish": RotationWish("a", finish="a")}):
            following = step(overlapping, **over)
            assert following is not None
            assert following.phase is RotationPhase.DROPPING


@given(
    rotation=st.sampled_from([stage.rotation for stage in STAGES]),
    wish=st.builds(RotationWish, st.sampled_from([None, "a", "b"]), st.sampled_from([None, "a", "b"])),
    later=st.timedeltas(dt.timedelta(0), dt.timedelta(days=60)),
)
def test_rotation_does_not_advance_before_it_has_settled(
    rotation: Rotation, wish: RotationWish, later: dt.timedelta
) -> None:
    assert next_rotation(rotation, wish=wish, settled=False, now=START + later) is None


def _issues(authorities: TenantAuthorities) -> dict[str, bytes]:
    """Return the certificates and public keys in use, by the party that verifies each of them."""
    return {
        "clients of the API server": authorities.serving.certificate,
        "API server, certificates": authorities.client.certificate,
        "extension API servers": authorities.front_proxy.certificate,
        "etcd and its clients": authorities.etcd.certificate,
        "API server, tokens": public_key(authorities.service_account_key),
    }


def _trusts(authorities: TenantAuthorities) -> dict[str, bytes]:
    return {
        "clients of the API server": authorities.serving_trust,
        "API server, certificates": authorities.client_trust,
        "extension API servers": authorities.front_proxy_trust,
        "etcd and its clients": authorities.etcd_trust,
        "API server, tokens": authorities.service_account_trust,
    }


def test_consecutive_steps_trust_each_other() -> None:
    """During a step some programs still have the previous step: each program must accept the others' credentials."""
    for before, after in pairwise(stage.in_force() for stage in STAGES):
        for issuer, verifier in ((before, before), (before, after), (after, before), (after, after)):
            for judge, shown in _issues(issuer).items():
                assert shown in _trusts(verifier)[judge], judge


def test_parties_with_old_credentials_work_until_overlap_ends() -> None:
    before, overlapping, dropping = (STAGES[number].in_force() for number in (0, 2, 3))
    assert overlapping.serving == before.serving
    for judge, shown in _issues(before).items():
        assert shown in _trusts(overlapping)[judge]
        if judge != "clients of the API server":
            assert shown not in _trusts(dropping)[judge]


def test_no_old_key_or_trust_remains_after_rotation() -> None:
    done = STAGES[-1]
    assert done.following is None
    assert replace(done.in_force(), rotation=None) == done.present
    for shown in _issues(OLD).values():
        assert all(shown not in trusted for trusted in _trusts(done.in_force()).values())
        assert all(shown not in entry for entry in done.to_secret().values())
    for key in (OLD.client.key, OLD.serving.key, OLD.service_account_key):
        assert key not in done.to_secret().values()


def test_issuers_change_while_trust_stays_the_same() -> None:
    # An etcd and an API server with unchanged trust need no restart.
    trusting, overlapping = STAGES[1].in_force(), STAGES[2].in_force()
    assert _trusts(trusting) == _trusts(overlapping)
    assert set(_issues(trusting).values()).isdisjoint(
        {shown for judge, shown in _issues(overlapping).items() if judge != "clients of the API server"}
    )


@pytest.mark.parametrize("stage", STAGES)
def test_each_step_round_trips_through_its_secret(stage: Generations) -> None:
    assert Generations.from_secret(stage.to_secret()) == stage


@pytest.mark.parametrize("entry", ["rotation.json", "next-sa.key", "next-client-ca.crt", "client-ca.key"])
def test_damaged_entry_is_named_in_the_error(entry: str) -> None:
    with pytest.raises(CredentialsInvalid, match=entry.removeprefix("next-").replace(".", r"\.")):
        Generations.from_secret(STAGES[2].to_secret() | {entry: b"damaged"})


@dataclass
class World:
    """A Secret, the running authorities and the published authorities, while operators start and crash."""

    secret: dict[str, bytes]
    running: TenantAuthorities = OLD
    published: TenantAuthorities = OLD
    seen: list[str] = field(default_factory=list)

    def live(self, *, wish: RotationWish, now: dt.datetime, writes: int) -> bool:
        """Reconcile with an operator that is killed after `writes` writes. Return whether the reconcile completed."""
        generations = Generations.from_secret(self.secret)
        desired = generations.in_force()
        if self.running != desired:
            if not writes:
                return False
            self._agree(desired)
            self.running, writes = desired, writes - 1
        if self.published != desired:
            if not writes:
                return False
            self._agree(desired)
            self.published, writes = desired, writes - 1
        following = next_rotation(generations.rotation, wish=wish, settled=True, now=now)
        if following is not None:
            if not writes:
                return False
            self.secret = generations.advanced(following, name="x").to_secret()
            self.seen.append(following.phase.value)
        return True

    def _agree(self, wanted: TenantAuthorities) -> None:
        for other in (self.running, self.published):
            for judge, shown in _issues(wanted).items():
                assert shown in _trusts(other)[judge]
            for judge, shown in _issues(other).items():
                assert shown in _trusts(wanted)[judge]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 13, 30])), max_size=40))
def test_rotation_completes_despite_crashes_at_any_write(lives: list[tuple[int, int]]) -> None:
    world, now, wish = World(Generations(OLD).to_secret()), START, RotationWish("a")
    for writes, hours in lives:
        now += dt.timedelta(hours=hours)
        world.live(wish=wish, now=now, writes=writes)
    for _ in range(8):
        now += dt.timedelta(hours=25)
        assert world.live(wish=wish, now=now, writes=9)
    assert world.seen == [phase.value for phase in RotationPhase]
    last = Generations.from_secret(world.secret)
    assert last.rotation is not None
    assert last.rotation.phase is RotationPhase.DONE
    assert world.running == world.published == last.in_force()
    assert last.present != OLD


def test_authorities_of_two_generations_have_distinct_names() -> None:
    """If two trusted CAs have the same name, OpenSSL may take the wrong CA for the issuer."""
    first, second = TenantAuthorities.create("same"), TenantAuthorities.create("same")
    for mine, yours in ((first.serving, second.serving), (first.client, second.client), (first.etcd, second.etcd)):
        names = {x509.load_pem_x509_certificate(pair.certificate).subject for pair in (mine, yours)}
        assert len(names) == 2


def test_overlap_restarts_if_clock_was_ahead_at_its_start() -> None:
    overlapping = step(STAGES[1].rotation, now=START + dt.timedelta(days=2))
    assert overlapping is not None
    corrected = step(overlapping)
    assert corrected is not None
    assert corrected.phase is RotationPhase.OVERLAPPING
    assert corrected.drop_at == (START + OVERLAP).replace(microsecond=0)
    assert step(corrected) is None
    finished = step(overlapping, wish=RotationWish("a", finish="a"))
    assert finished is not None
    assert finished.phase is RotationPhase.DROPPING
