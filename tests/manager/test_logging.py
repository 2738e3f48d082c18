"""What managers log does not hold the values of variables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from pyreconcile.manager import Manager, run


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    config, configured = structlog.get_config(), structlog.is_configured()
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if configured:
        structlog.configure(**config)


def log_failure() -> None:
    password = "hunter2".upper()  # the traceback shows the code too
    try:
        raise ValueError(f"no number of {len(password)} characters")
    except ValueError:
        structlog.get_logger().exception("failed", key="ns/web")


async def main() -> None:
    log_failure()


def test_a_traceback_of_an_unconfigured_program_has_no_local_variables(capsys: pytest.CaptureFixture[str]):
    log_failure()
    assert "HUNTER2" in capsys.readouterr().out  # as structlog does with rich
    run(main)
    shown = capsys.readouterr().out
    assert "HUNTER2" not in shown
    assert "ValueError: no number of 7 characters" in shown
    assert "ns/web" in shown


async def test_a_manager_withholds_local_variables_too(capsys: pytest.CaptureFixture[str]):
    Manager()
    log_failure()
    assert "HUNTER2" not in capsys.readouterr().out


async def test_what_a_program_configures_is_left_as_it_is():
    processors = [structlog.processors.JSONRenderer()]
    structlog.configure(processors=processors)
    Manager()
    assert structlog.get_config()["processors"] is processors
