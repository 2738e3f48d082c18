"""The process: LeaderWorkerSet, DisaggregatedSet and their webhooks behind upstream's command line (LWS §11)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NoReturn

import structlog

from pyreconcile.api.core_v1 import Secret
from pyreconcile.client import ApiError, ConfigError, ConnectionLostError
from pyreconcile.election import LeadershipLostError
from pyreconcile.manager import Manager
from pyreconcile.manager import run as run_on
from pyreconcile_controllers import disaggregatedset, leaderworkerset
from pyreconcile_controllers.lws_manager import logs
from pyreconcile_controllers.lws_manager.configuration import ConfigurationError, load_configuration
from pyreconcile_controllers.lws_manager.flags import UsageError, parse_flags, usage
from pyreconcile_controllers.lws_manager.options import Plan, make_plan
from pyreconcile_controllers.lws_manager.rotation import Rotation, SecretCertificate, add_rotation, secret_options
from pyreconcile_controllers.lws_manager.version import user_agent, version_text

PROGRAM: Final = "pyreconcile-lws-manager"

log = structlog.get_logger()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the manager until SIGTERM or SIGINT, and exit: 0 done, 1 failed, 2 wrong usage."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run the manager, and return the exit code; every error is one line on stderr."""
    try:
        flags = parse_flags(arguments)
    except UsageError as error:
        return _fail(2, error)
    if flags.help:
        sys.stdout.write(f"{usage(PROGRAM)}\n")
        return 0
    if flags.version:
        sys.stdout.write(f"{version_text(environment)}\n")
        return 0
    logs.configure(flags)
    try:
        configuration = load_configuration(flags.config)
        plan = make_plan(flags, configuration, environment)
        log.info("configuration", **configuration.model_dump(by_alias=True, exclude_defaults=True))
        run_on(serve, plan)
    except (ConfigurationError, ApiError, ConfigError, ConnectionLostError, OSError) as error:
        return _fail(1, error)
    except LeadershipLostError as error:
        return _fail(1, f"leadership was lost: {error}")
    return 0


async def serve(plan: Plan) -> None:
    """Serve what is planned until the manager is told to stop.

    Raises:
        CertificateMissingError: the Secret of the webhooks' certificate is not there.
        Exception: as `pyreconcile.manager.Manager.run` does.
    """
    options = plan.manager
    source = SecretCertificate()
    place = plan.certificates
    if place is not None and options.webhook is not None:
        cached = replace(options.cache, by_kind={Secret: secret_options(place)})
        options = replace(options, webhook=replace(options.webhook, certificates=source), cache=cached)
    async with Manager(options) as manager:
        log.info("starting", version=version_text().splitlines()[0], user_agent=user_agent())
        if place is not None:
            # Neither webhooks nor controllers are of use without the certificate.
            rotation = Rotation(manager.unfenced_client, place, source)
            await rotation.ensure()
            add_rotation(manager, rotation, place)
        leaderworkerset.setup(manager, plan.settings)
        disaggregatedset.setup(manager)
        await manager.run()
    log.info("stopped")


def _fail(code: int, error: object) -> int:
    sys.stderr.write(f"{PROGRAM}: {' '.join(str(error).split())}\n")
    return code
