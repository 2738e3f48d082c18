"""``pyreconcile crds``: print or apply the CRDs of the bundled controllers."""

from __future__ import annotations

import anyio
import click


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--apply", "apply_", is_flag=True, help="Apply them, and wait until the server serves them.")
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig for --apply; by default as kubectl finds it.")
def crds(names: tuple[str, ...], apply_: bool, kubeconfig: str | None) -> None:
    """Print the CRDs of bundled controllers as YAML: of those named, or of all."""
    from pyreconcile.crd import crd_yaml
    from pyreconcile_controllers import BUNDLED, UnknownControllerError, load

    if kubeconfig and not apply_:
        raise click.UsageError("--kubeconfig is for --apply; without it nothing is asked of a server")
    try:
        bundles = load(names or sorted(BUNDLED))
    except UnknownControllerError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from error
    models = [model for bundle in bundles.values() for model in bundle.MODELS]
    if apply_:
        anyio.run(_apply, models, kubeconfig)
    else:
        click.echo(crd_yaml(*models), nl=False)


async def _apply(models: list[type], kubeconfig: str | None) -> None:
    from pyreconcile.client import ApiError, ConfigError, ConnectionLostError, ConnectOptions, connect
    from pyreconcile.crd import CRDNotServedError, install_crds

    try:
        async with connect(ConnectOptions(kubeconfig=kubeconfig)) as client:
            for crd in await install_crds(client, models):
                click.echo(f"{crd.metadata.name} is served")
    except (ApiError, ConfigError, ConnectionLostError, CRDNotServedError) as error:
        raise click.ClickException(str(error)) from error
