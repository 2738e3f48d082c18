"""Lines of a stream."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.client._http import LostError, SilentError
from pyreconcile.client._lines import Lines


class Source:
    def __init__(self, chunks, error=None):
        self.chunks = list(chunks)
        self.error = error

    async def readany(self):
        if self.chunks:
            return self.chunks.pop(0)
        if self.error is not None:
            raise self.error
        return b""


async def read(chunks, error=None):
    return [line async for line in Lines(Source(chunks, error), lambda e: ConnectionError(str(e)))]


@given(st.lists(st.binary(max_size=8).map(lambda b: b.replace(b"\n", b"")), max_size=12), st.data())
def test_rf_17_lines_come_whole_however_the_bytes_arrive(lines, data):
    text = b"".join(line + b"\n" for line in lines)
    chunks = []
    while text:
        size = data.draw(st.integers(1, len(text)))
        chunks.append(text[:size])
        text = text[size:]
    assert asyncio.run(read(chunks)) == [line for line in lines if line]


async def test_rf_17_a_line_may_be_longer_than_any_buffer():
    part = b"x" * 100_000
    lines = await read([part] * 50 + [b"\ny\n"])
    assert [len(line) for line in lines] == [5_000_000, 1]


async def test_a_last_line_without_its_end_is_handed_out():
    assert await read([b"a\nb"]) == [b"a", b"b"]


async def test_rf_16_silence_ends_the_stream_without_an_error_and_without_the_line_begun():
    assert await read([b"a\nb"], SilentError()) == [b"a"]


async def test_a_cut_stream_raises_after_the_lines_that_came():
    lines = Lines(Source([b"a\nb"], LostError("cut", answered=True)), lambda e: ConnectionError(str(e)))
    assert await anext(lines) == b"a"
    with pytest.raises(ConnectionError, match="cut"):
        await anext(lines)


async def test_rf_17_other_tasks_get_turns_between_many_lines():
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    await read([b"x\n" * 5000])
    task.cancel()
    assert turns >= 15
