"""What Envoy writes of requests: a line at the end of each, and lines of changes in flight when asked to."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from kplane.gateway.envoy.messages import Message, typed
from kplane.gateway.envoy.requests import READS

__all__ = ["RECORDING", "access_logs"]

RECORDING: Final = "kplane.changes_in_flight"
"""The value of Envoy's runtime by which it writes lines of changes in flight: 100, or 0."""

_LOGGERS: Final = "envoy.extensions.access_loggers"
_EVERY: Final = "2s"
"""Between two lines of a request that is open."""
_PERIODIC: Final = "DownstreamPeriodic"
_READS: Final = {"safe_regex": {"regex": READS}}

_ENDED: Final = {
    "time": "%START_TIME%",
    "controlPlane": "%ROUTE_NAME%",
    "upstream": "%UPSTREAM_CLUSTER%",
    "method": "%REQ(:METHOD)%",
    # The rest of the path without the query: that of an exec has a command in it.
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
    """Return the part of the HTTP manager. Envoy appends lines of changes in flight to file `changes`."""
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
