"""The log under the zap flags (LWS §11)."""

import io
import json
import logging

import pytest
import structlog

from pyreconcile_controllers.lws_manager import parse_flags
from pyreconcile_controllers.lws_manager.logs import level_of, processors

NANOSECONDS = 1_780_000_000_123_456_700


def written(*arguments, level="info", **event):
    out = io.StringIO()
    flags = parse_flags(arguments)
    logger = structlog.wrap_logger(
        structlog.PrintLogger(out),
        processors=processors(flags, now=lambda: NANOSECONDS),
        wrapper_class=structlog.make_filtering_bound_logger(level_of(flags)),
    )
    getattr(logger, level)("said", **event)
    return out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ([], logging.DEBUG),
        (["--zap-devel=false"], logging.INFO),
        (["--zap-log-level=2"], logging.DEBUG),
        (["--zap-devel", "--zap-log-level=error"], logging.ERROR),
        (["--zap-log-level=panic"], logging.CRITICAL),
    ],
)
def test_lws_11_the_level_follows_the_flags(arguments, level):
    assert level_of(parse_flags(arguments)) == level


def test_lws_11_lines_are_for_people_by_default_and_json_in_production():
    assert "said" in written()
    assert "2026-05-28T20:26:40Z" in written()
    assert "said" in written("--zap-devel=false", "--zap-encoder=console")
    event = json.loads(written("--zap-devel=false", key="a/b"))
    assert event == {"event": "said", "level": "info", "key": "a/b", "timestamp": "2026-05-28T20:26:40Z"}
    assert json.loads(written("--zap-encoder=json"))["event"] == "said"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("epoch", 1780000000.1234567),
        ("millis", 1780000000123.4567),
        ("nanos", NANOSECONDS),
        ("iso8601", "2026-05-28T20:26:40.123Z"),
        ("rfc3339", "2026-05-28T20:26:40Z"),
        ("rfc3339nano", "2026-05-28T20:26:40.1234567Z"),
    ],
)
def test_lws_11_times_have_the_form_that_is_asked_for(form, text):
    assert json.loads(written("--zap-encoder=json", f"--zap-time-encoding={form}"))["timestamp"] == text
    assert "said" in written(f"--zap-time-encoding={form}")


def failing(*arguments, level):
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        return written(*arguments, level=level, exc_info=True)


def test_lws_11_tracebacks_are_logged_from_a_level_on():
    assert "RuntimeError" in failing(level="warning")
    assert "RuntimeError" not in failing(level="info")
    assert "RuntimeError" not in failing("--zap-devel=false", level="warning")
    assert "RuntimeError" in failing("--zap-devel=false", level="error")
    assert "RuntimeError" in failing("--zap-stacktrace-level=info", level="info")
    assert "RuntimeError" not in failing("--zap-stacktrace-level=panic", level="error")


def test_lws_11_a_traceback_shows_no_local_variables():
    secret = "the password"
    assert secret not in failing(level="error")
