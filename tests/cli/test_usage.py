"""The command line's manners: wrong usage is one line on stderr and exit code 2."""

import subprocess
import sys

import pytest


def pyreconcile(*arguments):
    command = [sys.executable, "-m", "pyreconcile", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "No such command 'fly'"),
        (["run", "--controllers", "modelcache,nope"], "unknown controller 'nope': choose from"),
        (["run", "--controllers", ","], "name at least one of"),
        (["run", "--fast"], "No such option"),
        (["run", "--kubeconfig", "missing.yaml"], "does not exist"),
        (["run", "--metrics-bind-address", "nonsense"], "metrics_bind_address"),
        (["run", "--webhook-bind-address", "nonsense"], "bind_address"),
        (["run", "--debug-bind-address", "nonsense"], "debug_bind_address"),
        (["run", "--metrics-authorization"], "metrics_authorization: needs metrics_tls"),
        (["run", "--loop", "trio"], "is not one of 'auto', 'asyncio', 'uvloop'"),
        (["run", "--leader-elect-renew-deadline", "20"], "lease_duration"),
        (["crds", "nope"], "nope"),
        (["up", "--nodes", "many"], "is not a valid integer"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, message):
    done = pyreconcile(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_loop_that_is_not_installed_is_wrong_usage():
    hide = "import sys; sys.modules['uvloop'] = None; import importlib.util as u; find = u.find_spec; "
    hide += "u.find_spec = lambda name, *a: None if name == 'uvloop' else find(name, *a); "
    main = "from pyreconcile.cli import main; main(['run', '--loop', 'uvloop'])"
    done = subprocess.run([sys.executable, "-c", hide + main], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "uvloop is not installed" in done.stderr


def test_help_lists_the_commands():
    done = pyreconcile("--help")
    assert done.returncode == 0
    for command in ("run", "crds", "up", "down", "status"):
        assert command in done.stdout


def test_crds_prints_yaml_of_the_named_controllers():
    done = pyreconcile("crds", "modelcache")
    assert done.returncode == 0
    assert "name: modelcaches.labs.example.dev" in done.stdout
    assert "leaderworkerset" not in done.stdout


@pytest.fixture
def unreachable(tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],"
        " contexts: [{name: x, context: {cluster: c, user: ''}}], current-context: x}"
    )
    return str(kubeconfig)


def test_an_unreachable_cluster_is_one_line_and_exit_code_1(unreachable):
    done = pyreconcile("crds", "modelcache", "--apply", "--kubeconfig", unreachable)
    assert done.returncode == 1
    assert "127.0.0.1" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unreachable_cluster_ends_run_install_without_a_traceback(unreachable):
    off = [f"--{server}-bind-address=0" for server in ("metrics", "health-probe", "webhook")]
    run = ["run", "--install", "--no-leader-elect", "--controllers", "modelcache", "--kubeconfig", unreachable]
    done = pyreconcile(*run, *off)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("pyreconcile: GET /apis/apiextensions.k8s.io/")
    assert "Traceback" not in done.stderr
