"""The table of what came of the runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Row:
    """One run: its case, its seconds, and whether it was right."""

    case: str
    seconds: float
    good: bool


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Keep rows in a file."""
    path.write_text(json.dumps([asdict(row) for row in rows]))


def read_rows(path: Path) -> list[Row]:
    """Return what `write_rows` kept; nothing if there is no such file."""
    return [Row(**row) for row in json.loads(path.read_text())] if path.exists() else []


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the table, one for each case."""
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(row.case, []).append(row)
    width = max(map(len, cases), default=4)
    yield f"{'case':{width}}  runs  good  bad  seconds: least  median    most"
    for case, runs in sorted(cases.items()):
        good = sum(run.good for run in runs)
        seconds = [run.seconds for run in runs]
        yield (
            f"{case:{width}}  {len(runs):4}  {good:4}  {len(runs) - good:3}  "
            f"{min(seconds):14.1f}  {median(seconds):6.1f}  {max(seconds):6.1f}"
        )
