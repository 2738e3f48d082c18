"""Looking into this process from another thread: tasks, threads, memory, samples."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import traceback
import tracemalloc
from collections import Counter
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, Final

import anyio

_TOP: Final = 30
_SAMPLE_SECONDS: Final = 0.01
_STACK_MAX: Final = 100


def threads() -> str:
    """Describe what every thread runs."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for number, frame in sys._current_frames().items():
        if number != threading.get_ident():
            lines = "".join(traceback.format_stack(frame))
            parts.append(f"thread {names.get(number, number)!r}:\n{lines}\n")
    return "".join(parts)


def stack_of_thread(number: int) -> list[str]:
    """Return what a thread runs, outermost call first."""
    frame = sys._current_frames().get(number)
    return [] if frame is None else _folded(frame)


def tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Describe what every task of a loop waits for; alike tasks are shown once, with their names."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for task in asyncio.all_tasks(loop):
        alike.setdefault(tuple(_waiting_at(task.get_coro())), []).append(task.get_name())
    parts = []
    for stack, names in sorted(alike.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(sorted(names)[:_TOP]) + (" …" if len(names) > _TOP else "")
        lines = "".join(f"  {line}\n" for line in stack) or "  running now\n"
        parts.append(f"{len(names)} task{'s' if len(names) > 1 else ''}: {shown}\n{lines}\n")
    return "".join(parts)


def _waiting_at(awaited: Any) -> list[str]:
    """Follow what a suspended coroutine awaits, down to the innermost; outermost first."""
    found: list[str] = []
    while awaited is not None and len(found) < _STACK_MAX:
        if isinstance(awaited, CoroutineType):
            frame, following = awaited.cr_frame, awaited.cr_await
        elif isinstance(awaited, GeneratorType):
            frame, following = awaited.gi_frame, awaited.gi_yieldfrom
        elif isinstance(awaited, AsyncGeneratorType):
            frame, following = awaited.ag_frame, awaited.ag_await
        else:
            name = type(awaited).__qualname__
            found.append("waits for a future" if name == "FutureIter" else f"waits for {name}")
            break
        if frame is not None:
            found.append(_place(frame))
        awaited = following
    return found


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}"


def memory() -> dict[str, Any]:
    """Describe the memory of this process: no values, only sizes, types and places."""
    found: dict[str, Any] = {
        "resident_bytes": _resident(),
        "collector": {"counts": gc.get_count(), "thresholds": gc.get_threshold(), "generations": gc.get_stats()},
        "objects": dict(Counter(type(obj).__qualname__ for obj in gc.get_objects()).most_common(_TOP)),
        "tracing": tracemalloc.is_tracing(),
    }
    if tracemalloc.is_tracing():
        found["traced_bytes"], found["traced_peak_bytes"] = tracemalloc.get_traced_memory()
        statistics = tracemalloc.take_snapshot().statistics("lineno")[:_TOP]
        found["allocations"] = [{"at": str(one.traceback), "bytes": one.size, "count": one.count} for one in statistics]
    return found


def _resident() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # not on Linux
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


async def profile(thread: int, seconds: float) -> str:
    """Sample a thread's stack each 10 ms; return folded stacks, ``outer;inner count`` a line."""
    samples: Counter[str] = Counter()
    end = anyio.current_time() + seconds
    while anyio.current_time() < end:
        frame = sys._current_frames().get(thread)
        if frame is not None:
            samples[";".join(_folded(frame))] += 1
        await anyio.sleep(_SAMPLE_SECONDS)
    return "".join(f"{stack} {count}\n" for stack, count in samples.most_common())


def _folded(frame: FrameType | None) -> list[str]:
    found: list[str] = []
    while frame is not None:
        found.append(_place(frame))
        frame = frame.f_back
    return found[::-1]
