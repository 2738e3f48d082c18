"""What docs/lws-manager.md says is so."""

import re
from pathlib import Path

import yaml

from pyreconcile_controllers.lws_manager import Configuration, parse_configuration
from pyreconcile_controllers.lws_manager.flags import usage

PAGE = (Path(__file__).parents[2] / "docs" / "lws-manager.md").read_text()


def test_lws_11_the_page_has_every_flag_with_its_default():
    rows = re.findall(r"^\| (`--.*?) \| (.*?) \|", PAGE, re.MULTILINE)
    shown = {flag: default.strip("`") for flags, default in rows for flag in re.findall(r"--([a-z-]+)", flags)}
    known = dict(re.findall(r"^  --([a-z-]+)\n.*?(?:\(default (.*)\))?$", usage("x"), re.MULTILINE))
    assert shown.keys() == known.keys()
    for flag, default in known.items():
        if default:
            assert shown[flag] == default


def test_lws_11_the_file_on_the_page_is_the_default_and_whole():
    [block] = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert parse_configuration(block) == Configuration()
    dumped = Configuration().model_dump(by_alias=True)
    shown = yaml.safe_load(block)
    assert set(dumped) - set(shown) == {"tls", "gangSchedulingManagement"}
    for section, fields in shown.items():
        if isinstance(fields, dict):
            assert set(dumped[section]) - set(fields) <= {"resourceNamespace"}
