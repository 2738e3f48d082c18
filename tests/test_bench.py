"""The parts of the benchmark that need no control plane: its order, its arithmetic, its page."""

from pathlib import Path

import pytest

from hack.bench import _peers, _report
from hack.bench.__main__ import rounds
from hack.bench._driver import Run
from hack.bench._micro import pod
from hack.bench._process import Measured, free_port
from hack.bench._server import samples
from pyreconcile.api.core_v1 import Pod
from pyreconcile.testing import eventually

PEERS = _peers.peers()


def run_of(peer, *, cpu, size=300):
    return Run(peer, size, {"cpu": cpu, "all_ready": 1.0}, [0.001 * number for number in range(1, 101)])


def test_peers_alternate_and_take_turns_in_being_first():
    order = list(rounds([300, 1000], 2, ["a", "b", "c"]))
    assert order[:6] == [(300, "a"), (300, "b"), (300, "c"), (1000, "b"), (1000, "c"), (1000, "a")]
    assert order[6:9] == [(300, "c"), (300, "a"), (300, "b")]
    assert len(order) == 12


@pytest.mark.parametrize(
    ("part", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.99, 4.96), (1.0, 5.0)], ids=["min", "median", "p99", "max"]
)
def test_percentiles_are_interpolated(part, expected):
    assert _report.percentile([5, 1, 4, 2, 3], part) == pytest.approx(expected)


def test_a_table_has_median_spread_and_ratio():
    runs = [run_of("pyreconcile", cpu=cpu) for cpu in (1.0, 2.0, 3.0)]
    runs += [run_of("go", cpu=cpu) for cpu in (1.0, 1.0, 1.0)]
    text = _report.tables(runs, PEERS)
    assert "### 300 objects\n" in text
    assert "Median (min–max) of 3 runs." in text
    assert "|  | pyreconcile | controller-runtime 0.25.2 | ratio to go |" in text
    assert "| CPU an object, ms | 2.00 (1.00–3.00) | 1.00 | 2.00 |" in text
    assert "| seen to Ready, one submitter, p50, ms | 50.5 | 50.5 | 1.00 |" in text
    assert "kopf" not in text


def test_a_ratio_to_nothing_is_not_written():
    assert _report.ratio([1.0], [0.0]) == "–"


def test_each_size_has_a_table():
    runs = [run_of("pyreconcile", cpu=1.0, size=size) for size in (5000, 300)]
    text = _report.tables(runs, PEERS)
    assert text.index("### 300 objects") < text.index("### 5,000 objects")


def test_a_part_of_the_page_is_replaced_and_the_rest_stays():
    page = "before\n<!-- a: written by make bench -->\nold\n<!-- end of a -->\nafter\n"
    expected = "before\n<!-- a: written by make bench -->\nnew\n<!-- end of a -->\nafter\n"
    assert _report.replace_part(page, "a", "new\n") == expected
    with pytest.raises(ValueError, match="no part 'b'"):
        _report.replace_part(page, "b", "new")


@pytest.mark.parametrize("part", ["comparison", "scale", "micro"])
def test_the_page_has_every_part(part):
    page = (Path(__file__).parent.parent / "docs" / "benchmarks.md").read_text()
    assert "here" in _report.replace_part(page, part, "here")


def test_samples_are_read_by_their_exact_name():
    text = 'a_total{verb="GET",note="x\\"y"} 3\na_total_more 4\n# a_total\na_total 1e3\n'
    assert samples(text, "a_total") == [({"verb": "GET", "note": 'x\\"y'}, 3.0), ({}, 1000.0)]


def test_the_pod_that_is_decoded_loses_nothing_on_the_way():
    assert Pod.from_dict(pod()).to_dict() == pod()


async def test_the_usage_of_a_process_counts_its_children(tmp_path):
    script = "python3 -c 'x = bytearray(64 * 2**20)\nprint(1, flush=True)\nimport time; time.sleep(60)' & wait"
    log = tmp_path / "log"
    process = await Measured.start(["sh", "-c", script], environment={}, log=log)

    try:
        await eventually(lambda: log.read_text() == "1\n", what="the memory is there")
        assert process.usage().memory > 64
    finally:
        await process.stop()
    with pytest.raises(RuntimeError, match="ended with code"):
        process.usage()


def test_a_free_port_is_a_port():
    assert 0 < free_port() < 2**16
