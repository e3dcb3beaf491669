"""Log lines that a machine reads."""

from __future__ import annotations

import io
import json
import logging
import re

from kplane.provider.logs import json_logging, log_fields, text_logging


def test_each_record_is_one_json_line_with_what_was_worked_on():
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


def test_on_a_terminal_lines_are_text_which_tenants_cannot_steer():
    stream = io.StringIO()
    log = logging.getLogger("test.logs")
    with text_logging("INFO", stream=stream), log_fields(cluster="a", name="b"):
        log.info("seen %s", "\x1b[2Jtwice\n2026-01-01 info    forged")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} info    seen \\x1b\[2Jtwice", first)
    assert second == "    2026-01-01 info    forged cluster=a name=b"
