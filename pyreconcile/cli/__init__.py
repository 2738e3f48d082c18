"""The ``pyreconcile`` command.

Sub-commands are imported when called, so that ``pyreconcile --help`` does not load the whole framework. Wrong names and
bad flags end with one line on stderr and exit code 2.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

__all__ = ["cli", "main"]

_COMMANDS = {
    "crds": ("pyreconcile.cli._crds", "Print or apply the CRDs of the bundled controllers."),
    "down": ("pyreconcile.cli._plane", "Stop the control plane that `up` started."),
    "lws": ("pyreconcile.cli._lws", "Look at LeaderWorkerSets, and run their manager."),
    "run": ("pyreconcile.cli._run", "Run bundled controllers as one manager."),
    "status": ("pyreconcile.cli._plane", "Show the control plane that `up` started."),
    "up": ("pyreconcile.cli._plane", "Start a local control plane and leave it running."),
}


class _LazyGroup(click.Group):
    """A group that knows its commands' names and help lines without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(_COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pyreconcile", prog_name="pyreconcile")
def cli() -> None:
    """Reconcilers for Kubernetes in Python: run the bundled controllers, print CRDs, start a test control plane."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage. Every error is one line on stderr."""
    try:
        code = cli.main(args=arguments, prog_name="pyreconcile", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        click.echo(f"pyreconcile: {' '.join(error.format_message().split())}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
