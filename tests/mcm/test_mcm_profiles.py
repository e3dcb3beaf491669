"""Controllers of each profile. kube-controller-manager has to know all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kplane.api import ControllersProfile
from kplane.mcm.describe.profiles import CORE, NODELESS, controllers
from kplane.workloads import ProgramFailed, run_program

ALL_KEYS = ("ca.crt", "sa.key", "signing-ca.crt", "signing-ca.key")


def test_each_profile_contains_the_smaller_profile() -> None:
    assert set(CORE) < set(NODELESS)
    assert controllers(ControllersProfile.CORE, keys=ALL_KEYS) == CORE
    assert controllers(ControllersProfile.NODELESS, keys=ALL_KEYS) == NODELESS
    assert controllers(ControllersProfile.FULL, keys=ALL_KEYS)[0] == "*"


def test_nodeless_profile_has_no_node_controllers() -> None:
    assert not [name for name in NODELESS if name.startswith(("node-", "taint-", "pod-garbage", "ttl-controller"))]


@pytest.mark.parametrize(
    ("missing", "lacking"),
    [
        ("sa.key", "serviceaccount-token-controller"),
        ("signing-ca.key", "certificatesigningrequest-signing-controller"),
        ("ca.crt", "root-ca-certificate-publisher-controller"),
    ],
)
def test_controller_without_its_keys_is_left_out(missing: str, lacking: str) -> None:
    keys = [key for key in ALL_KEYS if key != missing]
    assert set(NODELESS) - set(controllers(ControllersProfile.NODELESS, keys=keys)) == {lacking}
    assert f"-{lacking}" in controllers(ControllersProfile.FULL, keys=keys)


def test_order_and_repetition_of_explicit_controllers_are_ignored() -> None:
    expected = controllers(["*", "-a-controller", "b-controller"], keys=ALL_KEYS)
    assert controllers(["b-controller", "*", "-a-controller", "*"], keys=ALL_KEYS) == expected
    assert set(expected) == {"*", "-a-controller", "b-controller"}


def test_order_counts_if_a_controller_is_named_and_excluded() -> None:
    names = ["b-controller", "-a-controller", "a-controller"]
    assert controllers(names, keys=ALL_KEYS) == tuple(names)


@pytest.mark.integration
@pytest.mark.parametrize("profile", ControllersProfile)
@pytest.mark.parametrize("keys", [ALL_KEYS, ()], ids=["all keys", "no keys"])
async def test_kube_controller_manager_knows_every_controller(
    binaries: Any, tmp_path: Path, profile: ControllersProfile, keys: tuple[str, ...]
) -> None:
    """The program ends at the first unknown name and prints it. That has to be the last name of the list."""
    names = [*controllers(profile, keys=keys), "not-a-controller"]
    program = binaries.path("kube-controller-manager")
    with pytest.raises(ProgramFailed) as failure:
        await run_program(program, ["--secure-port=0", f"--controllers={','.join(names)}"], timeout_seconds=30.0)
    unknown_names = re.findall(
        r'\\"([^"\\]+)\\" is not in the list of known controllers', failure.value.stderr.decode()
    )
    assert unknown_names == ["not-a-controller"]
