"""``make field-cases``: every field case so many times, and one table.

O-19 is a quarter of an hour of silence, so it runs beside the others, on a control plane of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from hack.field_bench.table import read_rows, table

CASES = Path(__file__).parents[2] / "tests" / "field_cases"


def main() -> int:
    """Run the cases; the exit code says whether all runs were right."""
    parser = argparse.ArgumentParser(prog="hack.field_bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how often each case runs (default 20)")
    runs = str(parser.parse_args().runs)
    with tempfile.TemporaryDirectory(prefix="pyreconcile-field-") as folder:
        scratch = Path(folder)

        def command(select: str, name: str) -> list[str]:
            options = ["--long", "--runs", runs, "--results", str(scratch / f"{name}.json"), "-k", select]
            return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(CASES), *options]

        silent_log = scratch / "silent.log"
        with silent_log.open("wb") as output:
            silent = subprocess.Popen(command("o_19", "silent"), stdout=output, stderr=subprocess.STDOUT)
            try:
                others = subprocess.run(command("not o_19", "others"), check=False)
                print("waiting for O-19", flush=True)
                silent.wait()
            finally:
                silent.terminate()
                silent.wait()
        if silent.returncode:
            print(silent_log.read_text(errors="replace"))
        print("\n".join(table([*read_rows(scratch / "others.json"), *read_rows(scratch / "silent.json")])))
        return others.returncode or silent.returncode


if __name__ == "__main__":
    sys.exit(main())
