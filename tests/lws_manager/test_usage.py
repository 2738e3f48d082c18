"""The program's manners: one line on stderr, exit code 2 for wrong usage and 1 for what cannot be (LWS §11)."""

import subprocess
import sys

import pytest

from pyreconcile_controllers.lws_manager import main, run


def process(*command):
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=60, check=False)


def test_lws_11_wrong_flags_end_with_exit_code_2(capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["--fast"])
    assert exit_info.value.code == 2
    out, err = capsys.readouterr()
    assert err == "pyreconcile-lws-manager: flag provided but not defined: -fast; --help shows those that exist\n"
    assert out == ""


def test_lws_11_the_version_is_printed_in_three_lines(capsys):
    assert run(["--version"]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "Version",
        "Build Date",
        "Git Commit",
    ]


def test_lws_11_help_is_printed_also_by_the_subcommand(capsys):
    assert run(["-h"]) == 0
    text = capsys.readouterr().out
    assert "--leader-elect-resource-name" in text
    assert process("pyreconcile", "lws", "manager", "--help").stdout == text


def test_lws_11_a_file_that_is_wrong_ends_with_exit_code_1(tmp_path):
    wrong = tmp_path / "config.yaml"
    wrong.write_text("apiVersion: config.lws.x-k8s.io/v1alpha1\nkind: Configuration\nmore: 1\n")
    done = process("pyreconcile_controllers.lws_manager", f"--config={wrong}")
    assert done.returncode == 1
    assert done.stderr == f"pyreconcile-lws-manager: {wrong}: unknown field 'more'\n"


def test_lws_11_a_kubeconfig_that_is_missing_ends_with_exit_code_1(tmp_path):
    arguments = ("--zap-log-level=error", f"--kubeconfig={tmp_path / 'none'}")
    done = process("pyreconcile_controllers.lws_manager", *arguments)
    assert done.returncode == 1
    assert "there is no such file" in done.stderr
    assert len(done.stderr.splitlines()) == 1
