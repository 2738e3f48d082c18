"""What docs/gang-scheduling.md shows is so."""

import re
from pathlib import Path

import yaml

from pyreconcile_controllers.leaderworkerset import gang, gangs
from pyreconcile_controllers.lws_manager.configuration import parse_configuration

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gang-scheduling.md").read_text()
CONFIGURATION, RIGHTS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_lws_9_the_file_on_the_page_turns_gang_scheduling_on():
    assert parse_configuration(CONFIGURATION).scheduler_provider == "kubernetes"


def test_lws_9_the_manifests_give_the_rights_of_the_page():
    (needed,) = yaml.safe_load(RIGHTS)
    manifests = yaml.safe_load_all((ROOT / "deploy" / "lws" / "manager.yaml").read_text())
    (role,) = (item for item in manifests if item["metadata"]["name"] == "lws-manager-role" and "rules" in item)
    (given,) = (rule for rule in role["rules"] if rule["resources"] == needed["resources"])
    assert set(given["apiGroups"]) == set(needed["apiGroups"])
    assert set(given["verbs"]) >= set(needed["verbs"])


def test_lws_9_the_reasons_on_the_page_are_the_ones_in_the_code():
    said = set(re.findall(r'"(Group\w+|GangSchedulingUnavailable|FailedCreate)"', Path(gangs.__file__).read_text()))
    table = PAGE.split("### What is said")[1].split("###")[0]
    assert said == set(re.findall(r"^\| `(\w+)` \| ", table, re.MULTILINE))
    assert gang.CONDITION in PAGE
    assert f"{gang.SILENT_AFTER:g} s" in PAGE
