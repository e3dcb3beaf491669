"""Access logs of Envoy: a line at the end of each request, and lines about mutating requests in flight on demand."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from kplane.gateway.envoy.messages import Message, typed
from kplane.gateway.envoy.requests import READS

__all__ = ["RECORDING", "access_logs"]

RECORDING: Final = "kplane.changes_in_flight"
"""Key of Envoy's runtime that switches the log of mutating requests in flight: 100 for on, 0 for off."""

_LOGGERS: Final = "envoy.extensions.access_loggers"
_EVERY: Final = "2s"
"""Interval between two lines of an open request."""
_PERIODIC: Final = "DownstreamPeriodic"
_READS: Final = {"safe_regex": {"regex": READS}}

_ENDED: Final = {
    "time": "%START_TIME%",
    "controlPlane": "%ROUTE_NAME%",
    "upstream": "%UPSTREAM_CLUSTER%",
    "method": "%REQ(:METHOD)%",
    # Omit the query: the query of an exec contains its command.
    "path": "%PATH(NQ:PATH)%",
    "protocol": "%PROTOCOL%",
    "code": "%RESPONSE_CODE%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "received": "%BYTES_RECEIVED%",
    "sent": "%BYTES_SENT%",
    "milliseconds": "%DURATION%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS%",
    "userAgent": "%REQ(USER-AGENT)%",
}

_OPEN: Final = {
    "id": "%STREAM_ID%",
    "began": "%START_TIME(%s.%3f)%",
    "upstream": "%UPSTREAM_CLUSTER%",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ:PATH)%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
}


def access_logs(changes: PurePosixPath) -> Message:
    """Return the access logs of the HTTP connection manager.

    Envoy appends lines about mutating requests in flight to the file `changes`.
    """
    ended = {"log_type_filter": {"types": [_PERIODIC], "exclude": True}}
    filters = [
        {"log_type_filter": {"types": [_PERIODIC]}},
        {"runtime_filter": {"runtime_key": RECORDING, "percent_sampled": {"numerator": 0}}},
        {"header_filter": {"header": {"name": ":method", "string_match": _READS, "invert_match": True}}},
    ]
    appended = {"path": str(changes)}
    return {
        "access_log": [
            _logger("stream.v3.StdoutAccessLog", _ENDED, when=ended),
            _logger("file.v3.FileAccessLog", _OPEN, when={"and_filter": {"filters": filters}}, **appended),
        ],
        "access_log_options": {"access_log_flush_interval": _EVERY},
    }


def _logger(kind: str, line: Message, *, when: Message, **more: str) -> Message:
    config = typed(f"{_LOGGERS}.{kind}", log_format={"json_format": line}, **more)
    return {"name": kind, "filter": when, "typed_config": config}
