"""``pyreconcile lws``: look at LeaderWorkerSets, and run their manager with upstream's flags."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import click

if TYPE_CHECKING:
    from pyreconcile.client import Client
    from pyreconcile_controllers.leaderworkerset.description import Description


@click.group()
def lws() -> None:
    """Look at LeaderWorkerSets, and run their manager."""


@lws.command()
@click.argument("name")
@click.option("-n", "--namespace", default="default", show_default=True, metavar="NS", help="Namespace of the set.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig; by default as kubectl finds it.")
def describe(name: str, namespace: str, output: str, kubeconfig: str | None) -> None:
    """Show a set as a tree: groups, pods, revisions, and what a rollout waits for."""
    import orjson

    from pyreconcile_controllers.leaderworkerset.rendering import render, to_json

    description = anyio.run(_description, f"{namespace}/{name}", kubeconfig)
    if output == "json":
        click.echo(orjson.dumps(to_json(description), option=orjson.OPT_INDENT_2))
    else:
        click.echo(render(description, datetime.now(UTC)))


@lws.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAG]...")
def manager(flags: tuple[str, ...]) -> int:
    """Run LeaderWorkerSet and DisaggregatedSet with the flags and the file of upstream's manager."""
    from pyreconcile_controllers.lws_manager import run

    return run(flags)


async def _description(key: str, kubeconfig: str | None) -> Description:
    from pyreconcile.client import ApiError, ConfigError, ConnectionLostError, ConnectOptions, connect

    try:
        async with connect(ConnectOptions(kubeconfig=kubeconfig)) as client:
            return await _read(client, key)
    except (ApiError, ConfigError, ConnectionLostError) as error:
        raise click.ClickException(str(error)) from error


async def _read(client: Client, key: str) -> Description:
    from pyreconcile.api import RawObject, split_key
    from pyreconcile.api.apps_v1 import ControllerRevision, StatefulSet
    from pyreconcile.api.core_v1 import Pod
    from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet, groups, names
    from pyreconcile_controllers.leaderworkerset.description import Objects, describe

    found = await client.get(LeaderWorkerSet, key)
    namespace, name = split_key(key)
    labels = {names.SET_NAME_LABEL: name}

    async def listed(kind: type[Pod | StatefulSet | ControllerRevision]) -> list[RawObject]:
        return [item.to_dict() for item in await client.list(kind, namespace=namespace, labels=labels)]

    sets = await listed(StatefulSet)
    return describe(
        Objects(
            lws=found,
            leader_set=next((item for item in sets if groups.name_of(item) == name), None),
            worker_sets=[item for item in sets if groups.name_of(item) != name],
            pods=await listed(Pod),
            revisions=await listed(ControllerRevision),
        )
    )
