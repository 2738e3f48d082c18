"""The rollout planner (DS §7.2): exact sequences, and what holds for every rollout."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile_controllers.disaggregatedset import Limits, Rollout, State, next_state, states
from pyreconcile_controllers.disaggregatedset.planner import unstick


def numbers(text):
    return tuple(int(number) for number in text.split(","))


def rollout(source, target, surge=(), unavailable=()):
    source, target = numbers(source), numbers(target)
    surge = surge or (1,) * len(source)
    unavailable = unavailable or (0,) * len(source)
    return Rollout.of(source, target, [Limits(s, u) for s, u in zip(surge, unavailable, strict=True)])


def arrows(found):
    return " → ".join(map(str, found))


def alternating(first, last):
    """Both sides in turn by one, from a start of ``first`` roles to the end: the long rows of the table."""
    text = [f"{first(10)}|{last(0)}"]
    for step in range(1, 11):
        text.append(f"{first(11 - step)}|{last(step)}")
        text.append(f"{first(10 - step) if step < 10 else '0,0'}|{last(step)}")
    return " → ".join(text)


# What upstream's table of exact sequences says (DS §7.4), by "old→target" and surge.
SEQUENCES = {
    "1,1→1,1": ((), "1,1|0,0 → 1,1|1,1 → 0,0|1,1"),
    "2,2→2,2": ((), "2,2|0,0 → 2,2|1,1 → 1,1|1,1 → 1,1|2,2 → 0,0|2,2"),
    "3,3→3,3": ((), "3,3|0,0 → 3,3|1,1 → 2,2|1,1 → 2,2|2,2 → 1,1|2,2 → 1,1|3,3 → 0,0|3,3"),
    "6,2→6,2": (
        (),
        "6,2|0,0 → 6,2|1,1 → 5,2|1,1 → 5,2|2,1 → 4,2|2,1 → 4,2|3,1 → 3,1|3,1 → 3,1|4,2 → 2,1|4,2 → 2,1|5,2 → "
        "1,1|5,2 → 1,1|6,2 → 0,0|6,2",
    ),
    "6,2→6,2 surge 2,2": ((2, 2), "6,2|0,0 → 6,2|2,1 → 4,2|2,1 → 4,2|4,2 → 2,1|4,2 → 2,1|6,2 → 0,0|6,2"),
    "6,4→6,4 surge 2,2": ((2, 2), "6,4|0,0 → 6,4|2,2 → 4,3|2,2 → 4,3|4,3 → 2,2|4,3 → 2,2|6,4 → 0,0|6,4"),
    "10,1→10,1": ((), alternating(lambda n: f"{n},1", lambda n: f"{n},1" if n else "0,0")),
    "1,10→1,10": ((), alternating(lambda n: f"1,{n}", lambda n: f"1,{n}" if n else "0,0")),
    "10,10→10,10": ((), alternating(lambda n: f"{n},{n}", lambda n: f"{n},{n}")),
    "10,10→10,10 surge 3,3": (
        (3, 3),
        "10,10|0,0 → 10,10|3,3 → 8,8|3,3 → 8,8|5,5 → 5,5|8,8 → 3,3|8,8 → 3,3|10,10 → 0,0|10,10",
    ),
    "12,6→12,6 surge 2,2": (
        (2, 2),
        "12,6|0,0 → 12,6|2,1 → 10,5|2,1 → 10,5|4,2 → 8,4|4,2 → 8,4|6,3 → 6,3|6,3 → 6,3|8,4 → 4,2|8,4 → 4,2|10,5 → "
        "2,1|10,5 → 2,1|12,6 → 0,0|12,6",
    ),
    "1,1→3,3": ((), "1,1|0,0 → 1,1|1,1 → 1,1|2,2 → 1,1|3,3 → 0,0|3,3"),
    "4,4→6,6": ((), "4,4|0,0 → 4,4|1,1 → 4,4|2,2 → 4,4|3,3 → 3,3|4,4 → 2,2|5,5 → 1,1|6,6 → 0,0|6,6"),
    "5,5→2,2": ((), "5,5|0,0 → 4,4|0,0 → 3,3|0,0 → 2,2|0,0 → 2,2|1,1 → 1,1|1,1 → 1,1|2,2 → 0,0|2,2"),
    "3,5→5,3": (
        (),
        "3,5|0,0 → 3,4|0,0 → 2,3|0,0 → 2,3|1,1 → 2,2|1,1 → 2,2|2,2 → 2,2|3,2 → 1,1|3,2 → 1,1|4,3 → 1,1|5,3 → 0,0|5,3",
    ),
    "2,4→4,2": (
        (),
        "2,4|0,0 → 2,3|0,0 → 1,2|0,0 → 1,2|1,1 → 1,2|2,1 → 1,1|2,1 → 1,1|3,2 → 1,1|4,2 → 0,0|4,2",
    ),
    "3,5→4,2": (
        (),
        "3,5|0,0 → 3,4|0,0 → 2,3|0,0 → 2,2|0,0 → 2,2|1,1 → 2,2|2,1 → 1,1|2,1 → 1,1|3,2 → 1,1|4,2 → 0,0|4,2",
    ),
    "4,4→4,4 surge 2,2": ((2, 2), "4,4|0,0 → 4,4|2,2 → 2,2|2,2 → 2,2|4,4 → 0,0|4,4"),
    "4,6→4,6 surge 2,3": ((2, 3), "4,6|0,0 → 4,6|2,3 → 2,3|2,3 → 2,3|4,6 → 0,0|4,6"),
    "5,3→5,3 surge 2,2": (
        (2, 2),
        "5,3|0,0 → 5,3|2,1 → 4,2|2,1 → 3,2|2,1 → 3,2|4,2 → 2,1|4,2 → 2,1|5,3 → 0,0|5,3",
    ),
    "0,0→3,3": ((), "0,0|0,0 → 0,0|1,1 → 0,0|2,2 → 0,0|3,3"),
    "0,0→0,0": ((), "0,0|0,0"),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_ds_7_4_exact_sequence(name):
    surge, expected = SEQUENCES[name]
    assert arrows(states(rollout(*name.partition(" ")[0].split("→"), surge))) == expected


def test_ds_7_4_has_22_sequences():
    assert len(SEQUENCES) == 22


# Further sequences of DS §7.4: end-to-end tests, KEP-766, and another port.
FURTHER = {
    "10,2→6,8": (
        ((2, 2), (0, 0)),
        "10,2|0,0 → 8,2|0,0 → 6,2|0,0 → 6,2|2,2 → 4,1|2,2 → 4,1|3,4 → 4,1|4,5 → 2,1|4,5 → 2,1|5,7 → 2,1|6,8 → 0,0|6,8",
    ),
    "4,4→4,4": (((0, 0), (2, 2)), "4,4|0,0 → 2,2|0,0 → 2,2|2,2 → 0,0|2,2 → 0,0|4,4"),
    "5,2→5,2": (((2, 2), (1, 1)), "5,2|0,0 → 5,2|2,1 → 4,2|2,1 → 3,2|4,2 → 2,1|4,2 → 2,1|5,2 → 0,0|5,2"),
    "5,2→5,2 ": (
        ((0, 0), (1, 1)),
        "5,2|0,0 → 4,2|0,0 → 4,1|1,1 → 3,1|1,1 → 3,1|2,1 → 2,1|2,1 → 2,1|3,2 → 1,1|3,2 → 0,0|4,2 → 0,0|5,2",
    ),
    "4,4,0→4,4,4": (
        ((1, 1, 1), (0, 0, 0)),
        "4,4,0|0,0,0 → 4,4,0|1,1,1 → 3,3,0|1,1,1 → 3,3,0|2,2,2 → 2,2,0|2,2,2 → 2,2,0|3,3,3 → 1,1,0|3,3,3 → "
        "1,1,0|4,4,4 → 0,0,0|4,4,4",
    ),
    "4,4,4→4,4,0": (
        ((1, 1, 1), (0, 0, 0)),
        "4,4,4|0,0,0 → 4,4,4|1,1,0 → 3,3,3|1,1,0 → 3,3,3|2,2,0 → 2,2,2|2,2,0 → 2,2,2|3,3,0 → 1,1,1|3,3,0 → "
        "1,1,1|4,4,0 → 0,0,0|4,4,0",
    ),
    "1,2→1,2": (((0, 1), (1, 0)), "1,2|0,0 → 1,2|1,1 → 1,1|1,1 → 0,0|1,2"),
    "1,1→1,1": (((1, 0), (0, 1)), "1,1|0,0 → 0,0|1,1"),
}


@pytest.mark.parametrize("name", FURTHER)
def test_ds_7_4_further_sequence(name):
    (surge, unavailable), expected = FURTHER[name]
    assert arrows(states(rollout(*name.strip().split("→"), surge, unavailable))) == expected


@pytest.mark.parametrize(
    ("surge", "unavailable", "batch"), [(1, 0, 1), (2, 0, 2), (0, 1, 1), (0, 2, 2), (0, 0, 1), (3, 2, 3)]
)
def test_ds_7_4_batch(surge, unavailable, batch):
    assert Limits(surge, unavailable).batch == batch


@pytest.mark.parametrize(
    ("source", "target", "surge", "steps"),
    [("4,4", "4,4", (), 4), ("4,4", "4,4", (2, 2), 2), ("6,2", "6,2", (), 6), ("0,0", "3,3", (), 3)],
)
def test_ds_7_4_number_of_steps(source, target, surge, steps):
    assert rollout(source, target, surge).steps == steps


def following(plan, old, new):
    found = next_state(plan, State(numbers(old), numbers(new)))
    return found and str(found)


def test_ds_7_2_more_old_replicas_than_at_the_start_are_clamped():
    assert following(rollout("4,4", "4,4"), "5,5", "2,2") == "4,4|2,2"
    assert following(rollout("3,6", "3,6"), "0,0", "3,6") is None
    assert following(rollout("3,6", "3,6"), "0,0", "4,7") is None


def test_ds_7_2_roles_without_replicas_stay_so():
    assert following(rollout("0,4", "0,4"), "0,4", "0,0") == "0,4|0,1"
    assert following(rollout("4,0", "4,0"), "4,0", "0,0") == "4,0|1,0"


N_ROLES = {
    "3,3,3": ("3,3,3", ()),
    "6,3,2": ("6,3,2", (2, 1, 1)),
    "4,4,4": ("4,4,4", (2, 1, 3)),
    "2,2,2": ("4,4,4", ()),
    "4,4,4 down": ("2,2,2", ()),
    "0,0,0": ("3,3,3", ()),
    "8,4,2,1": ("8,4,2,1", (2, 2, 1, 1)),
    "5,5,5,5": ("2,2,2,2", ()),
    "10,5,3,2,1": ("10,5,3,2,1", (2, 2, 1, 1, 1)),
    "6,6,6,6,6": ("3,3,3,3,3", ()),
    "4,4,0": ("4,4,4", ()),
    "4,4,4 less": ("4,4,0", ()),
    "3,3,0": ("3,0,3", ()),
    "2,5,0,0,1,0,3,0,0,4": ("0,5,2,0,0,1,3,4,0,0", ()),
    "4,4,0,0": ("0,0,4,4", ()),
}


@pytest.mark.parametrize("name", N_ROLES)
def test_ds_16_n_roles_complete(name):
    target, surge = N_ROLES[name]
    source = name.partition(" ")[0]
    assert arrows(states(rollout(source, target, surge))[-1:]) == f"{','.join('0' for _ in source.split(','))}|{target}"


def test_ds_13_2_a_target_lowered_below_what_is_there_does_not_stop_the_rollout():
    plan = rollout("4,0", "4,1")
    stuck = State((1, 0), (3, 3))
    assert next_state(plan, stuck) is None
    seen = []
    while stuck and any(stuck.old):
        stuck = next_state(plan, stuck) or unstick(plan, stuck)
        seen.append(str(stuck))
    assert seen == ["1,0|4,3", "0,0|4,3"]


def test_ds_7_2_a_role_below_what_it_should_keep_does_not_stop_the_others():
    # Old prefill is at 3 although 4 are to be kept: a revision ended as a whole. Decode must still make room.
    assert following(rollout("5,3", "4,1"), "3,2", "0,0") == "3,1|1,1"


def test_ds_13_2_old_replicas_that_nobody_planned_for_go():
    plan = rollout("0,0", "0,0")
    assert str(unstick(plan, State((0, 2), (0, 0)))) == "0,0|0,0"
    assert unstick(plan, State((0, 0), (0, 0))) is None


def test_rollout_wants_one_entry_for_each_role():
    with pytest.raises(ValueError, match="one entry for each role"):
        Rollout((1, 2), (1,), (Limits(),))


limits = st.builds(Limits, st.integers(0, 4), st.integers(0, 4)).filter(lambda role: role.surge or role.unavailable)
number = st.integers(0, 12)


@st.composite
def rollouts(draw, limit=limits, same=False):
    count = draw(st.integers(2, 5))
    source = draw(st.lists(number, min_size=count, max_size=count))
    target = source if same else draw(st.lists(number, min_size=count, max_size=count))
    return Rollout.of(source, target, draw(st.lists(limit, min_size=count, max_size=count)))


surge_only = st.builds(Limits, st.integers(1, 4), st.just(0))


@given(rollouts())
def test_ds_15_every_rollout_ends_at_its_target(plan):
    last = states(plan)[-1]
    assert not any(last.old)
    assert last.new == plan.target
    assert next_state(plan, last) is None


@given(rollouts())
def test_ds_7_2_old_only_shrinks_and_new_only_grows(plan):
    for before, after in itertools.pairwise(states(plan)):
        assert before != after
        assert all(b >= a >= 0 for b, a in zip(before.old, after.old, strict=True))
        assert all(b <= a <= t for b, a, t in zip(before.new, after.new, plan.target, strict=True))


@given(rollouts(limit=surge_only))
def test_ds_16_surge_bound_holds_once_new_replicas_come(plan):
    for state in states(plan):
        for old, new, target, role in zip(state.old, state.new, plan.target, plan.limits, strict=True):
            assert new == 0 or old + new <= target + role.surge


@given(rollouts())
def test_ds_16_unavailable_bound_holds_for_roles_that_do_not_grow(plan):
    # A role that is to end, or the last step that drains what the new revision covers, has nothing to keep.
    for state in states(plan):
        kept = zip(plan.initial, state.old, state.new, plan.target, plan.limits, strict=True)
        for initial, old, new, target, role in kept:
            assert initial < target or old + new >= target - role.unavailable


@given(rollouts(limit=surge_only, same=True))
def test_ds_1_no_role_that_keeps_its_replicas_serves_with_fewer_while_only_surge_is_allowed(plan):
    # Old replicas go before those that come in the same step are ready.
    for before, after in itertools.pairwise(states(plan)):
        assert all(map(int.__ge__, map(int.__add__, after.old, before.new), plan.target))


@given(rollouts(limit=surge_only, same=True))
def test_ds_1_new_replicas_keep_the_ratio(plan):
    # Some share of the whole way gives each role's replicas, rounded up: no role is a whole replica off.
    steps = max(1, plan.steps)
    shares = [tuple(-(-step * target // steps) for target in plan.target) for step in range(steps + 1)]
    assert all(state.new in shares for state in states(plan))


@given(rollouts(same=True))
def test_ds_7_2_no_role_of_the_old_revision_ends_alone(plan):
    for state in states(plan):
        left = [old for old, initial in zip(state.old, plan.initial, strict=True) if initial > 0]
        assert all(left) or not any(left)


@given(rollouts(), st.data())
def test_ds_13_2_from_any_state_something_is_done_until_nothing_old_is_left(plan, data):
    vector = st.lists(number, min_size=len(plan.target), max_size=len(plan.target)).map(tuple)
    state = State(data.draw(vector), data.draw(vector))
    for _ in range(500):
        following = next_state(plan, state) or (unstick(plan, state) if any(state.old) else None)
        if following is None:
            break
        assert following != state
        assert all(map(int.__le__, following.old, state.old))
        assert all(map(int.__ge__, following.new, state.new))
        state = following
    assert not any(state.old)
