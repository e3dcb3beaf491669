"""Nothing that looks like a secret is left."""

from __future__ import annotations

import base64

import pytest

from kplane.cli.scrubbing import REMOVED, scrub_object, scrub_text

KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIA\n-----END EC PRIVATE KEY-----"
TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJlc2ln"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"before {KEY} after", f"before {REMOVED} after"),
        (f"token={TOKEN}, next", f"token={REMOVED}, next"),
        ("Authorization: Bearer abcdefghij1234", f"Authorization: Bearer {REMOVED}"),
        ("AGE-SECRET-KEY-1QQPQZ5", REMOVED),
        ("https://user:hunter2@example.org/x", f"https://{REMOVED}@example.org/x"),
        (base64.b64encode(KEY.encode()).decode(), REMOVED),
        ("an Event globex.0123456789abcdef of kplane-cp-acme", "an Event globex.0123456789abcdef of kplane-cp-acme"),
        ("https://127.0.0.1:6443/clusters/acme", "https://127.0.0.1:6443/clusters/acme"),
    ],
)
def test_texts(text: str, left: str) -> None:
    assert scrub_text(text) == left


def test_objects_lose_annotations_that_are_secrets() -> None:
    annotations = {
        "controlplane.kplane.dev/adoption-token": "x",
        "controlplane.kplane.dev/adopt": "x",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "note": f"it is {TOKEN}",
        "kept": "value",
    }
    found = scrub_object([{"metadata": {"annotations": annotations, "managedFields": []}, "count": 3, "none": None}])
    assert found == [
        {
            "metadata": {
                "annotations": {
                    "controlplane.kplane.dev/adoption-token": REMOVED,
                    "controlplane.kplane.dev/adopt": REMOVED,
                    "kubectl.kubernetes.io/last-applied-configuration": REMOVED,
                    "note": f"it is {REMOVED}",
                    "kept": "value",
                }
            },
            "count": 3,
            "none": None,
        }
    ]
