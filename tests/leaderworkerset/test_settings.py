"""What an operator may set for all sets."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pyreconcile_controllers.leaderworkerset import Settings


def test_lws_9_no_scheduler_provider_is_the_default():
    assert Settings() == Settings.from_environment({}) == Settings.from_environment({"LEADERWORKERSET_OTHER": "x"})
    assert Settings().scheduler_provider is None


@pytest.mark.parametrize("provider", ["volcano", "kubernetes"])
def test_lws_9_the_environment_names_the_scheduler_provider(provider):
    assert Settings.from_environment({"LEADERWORKERSET_SCHEDULER_PROVIDER": provider}).scheduler_provider == provider


def test_lws_11_an_empty_variable_counts_as_not_set():
    assert Settings.from_environment({"LEADERWORKERSET_SCHEDULER_PROVIDER": ""}) == Settings()


def test_lws_11_numbers_are_read_from_the_environment():
    settings = Settings.from_environment({"LEADERWORKERSET_WAITING_EVENT_AFTER": "2.5"})
    assert settings.waiting_event_after == 2.5


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LEADERWORKERSET_SCHEDULER_PROVIDER": "yarn"}, "scheduler_provider: must be 'volcano' or 'kubernetes'"),
        ({"LEADERWORKERSET_WAITING_EVENT_AFTER": "soon"}, "LEADERWORKERSET_WAITING_EVENT_AFTER: must be a number"),
        ({"LEADERWORKERSET_WAITING_EVENT_AFTER": "-1"}, "waiting_event_after: must be 0 or more"),
        ({"LEADERWORKERSET_WAITING_EVENT_AFTER": "nan"}, "waiting_event_after: must be 0 or more"),
    ],
)
def test_lws_11_an_unusable_setting_is_named(environment, message):
    with pytest.raises(ValueError, match=message):
        Settings.from_environment(environment)


def test_lws_11_the_page_has_every_setting():
    page = (Path(__file__).parents[2] / "docs" / "leaderworkerset.md").read_text()
    shown = re.findall(r"^\| `LEADERWORKERSET_([A-Z_]+)` \|", page, re.MULTILINE)
    assert shown == [field.name.upper() for field in fields(Settings)]
