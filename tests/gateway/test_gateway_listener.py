"""Listener of Envoy: time limits of clients that stop before their request is complete."""

from __future__ import annotations

from pathlib import PurePosixPath

from kplane.gateway.envoy.listener import listener

from .fleet import serving


def test_listener_limits_time_of_handshake_and_headers() -> None:
    """Envoy has no limit for handshake and headers by default. Each connection takes memory."""
    message = listener(
        serving(), routes="/run/routes.json", secrets=PurePosixPath("/run/serving"), changes=PurePosixPath("/run/log")
    )
    (chain,) = message["filter_chains"]
    (manager,) = (entry["typed_config"] for entry in chain["filters"])
    assert message["listener_filters_timeout"] == "10s"
    assert chain["transport_socket_connect_timeout"] == "10s"
    assert manager["request_headers_timeout"] == "10s"
    assert manager["request_timeout"] == "3600s"
