"""Log lines as JSON for machines, and as text for terminals."""

from __future__ import annotations

import io
import json
import logging
import re

from kplane.provider.logs import json_logging, log_fields, text_logging


def test_json_logging_writes_one_line_with_the_log_fields():
    stream = io.StringIO()
    log = logging.getLogger("test.logs")
    with json_logging("INFO", stream=stream):
        log.debug("not shown")
        with log_fields(cluster="a"), log_fields(controller="c"):
            log.info("seen %s", "twice\nover", extra={"seconds": 3})
        try:
            int("odd")
        except ValueError:
            log.exception("failed")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["message"] == "seen twice\nover"
    assert (first["level"], first["logger"], first["cluster"], first["controller"]) == ("info", "test.logs", "a", "c")
    assert first["seconds"] == 3
    assert "cluster" not in second
    assert "ValueError: invalid literal" in second["message"]


def test_text_logging_escapes_control_characters_and_line_breaks():
    stream = io.StringIO()
    log = logging.getLogger("test.logs")
    with text_logging("INFO", stream=stream), log_fields(cluster="a", name="b"):
        log.info("seen %s", "\x1b[2Jtwice\n2026-01-01 info    forged")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} info    seen \\x1b\[2Jtwice", first)
    assert second == "    2026-01-01 info    forged cluster=a name=b"
