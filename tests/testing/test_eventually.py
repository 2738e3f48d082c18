"""Waiting for something to become so."""

import asyncio

import anyio
import pytest

from pyreconcile.client import ForbiddenError, NotFoundError
from pyreconcile.testing import eventually

pytestmark = pytest.mark.looptime


def now():
    return asyncio.get_running_loop().time()


async def test_te_7_returns_the_first_true_value():
    async def check():
        return "ready" if now() >= 3 else ""

    assert await eventually(check, interval=1) == "ready"
    assert now() == 3


async def test_te_7_a_plain_function_will_do():
    def check():
        if now() < 1:
            raise NotFoundError("no such thing")
        return "ready" if now() >= 3 else None

    assert await eventually(check, interval=1) == "ready"
    assert now() == 3


async def test_te_7_not_found_counts_as_not_yet():
    async def check():
        if now() < 2:
            raise NotFoundError("no such thing")
        return 7

    assert await eventually(check, interval=1) == 7


async def test_te_7_any_other_exception_passes_through():
    async def check():
        raise ForbiddenError("not you")

    with pytest.raises(ForbiddenError):
        await eventually(check)
    assert now() == 0


@pytest.mark.parametrize("outcome", [[], NotFoundError("no such thing")])
async def test_te_7_in_the_end_it_fails_and_says_what_it_saw(outcome):
    async def the_pods_run():
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with pytest.raises(AssertionError, match="not within 5 s: the_pods_run; last: ") as failure:
        await eventually(the_pods_run, timeout=5)
    assert repr(outcome) in str(failure.value)


async def test_te_7_a_check_that_hangs_is_bounded_too():
    with pytest.raises(AssertionError, match="not within 5 s: pods; last: nothing yet"):
        await eventually(anyio.sleep_forever, timeout=5, what="pods")
    assert now() == 5
