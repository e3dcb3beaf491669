"""Log lines say in JSON what was done, and on what."""

from __future__ import annotations

import io
import json
import logging

from provider.logs import json_logging, log_fields


def test_log_lines_are_json_and_name_their_object() -> None:
    stream = io.StringIO()
    with json_logging("INFO", stream=stream), log_fields(object="ControlPlane/acme"):
        logging.getLogger("any").info("done in %d ms", 7, extra={"listen": "here"})
        try:
            int("no number")
        except ValueError:
            logging.getLogger("any").exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["message"], first["object"], first["listen"]) == ("done in 7 ms", "ControlPlane/acme", "here")
    assert first["level"] == "info"
    assert "ValueError: invalid literal" in second["message"]
