"""retry_on_conflict."""

import pytest

from pyreconcile.client import ConflictError, NotFoundError, retry_on_conflict


class Flaky:
    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.calls = 0

    async def __call__(self):
        self.calls += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def sleeps():
    return []


@pytest.fixture
def options(sleeps):
    async def sleep(seconds):
        sleeps.append(seconds)

    return {"sleep": sleep, "rand": lambda: 0.5}


async def test_er_4_conflicts_are_tried_again(options, sleeps):
    fn = Flaky(ConflictError("1"), ConflictError("2"), "done")
    assert await retry_on_conflict(fn, **options) == "done"
    assert sleeps == pytest.approx([0.0105, 0.0105])


async def test_er_4_after_five_tries_the_last_conflict_is_raised(options, sleeps):
    fn = Flaky(*[ConflictError(str(i)) for i in range(9)])
    with pytest.raises(ConflictError, match="4"):
        await retry_on_conflict(fn, **options)
    assert (fn.calls, len(sleeps)) == (5, 4)


async def test_er_4_backoff_form(options, sleeps):
    fn = Flaky(*[ConflictError(str(i)) for i in range(9)])
    with pytest.raises(ConflictError, match="3"):
        await retry_on_conflict(fn, tries=4, factor=5.0, **options)
    assert sleeps == pytest.approx([0.0105, 0.0525, 0.2625])


async def test_er_4_other_errors_end_it_at_once(options):
    fn = Flaky(NotFoundError("gone"), "never")
    with pytest.raises(NotFoundError):
        await retry_on_conflict(fn, **options)
    assert fn.calls == 1


async def test_er_4_no_tries_is_refused(options):
    with pytest.raises(ValueError, match="tries"):
        await retry_on_conflict(Flaky("x"), tries=0, **options)
