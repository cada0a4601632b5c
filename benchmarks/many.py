"""Seconds for 200 configs in one call of `scantling analyze --json`, and for one config.

    python benchmarks/many.py [--profile] [FOLDER OF JSON CONFIGS …]

The configs of the folders come first, then the catalogue by name, then the catalogue as files (read
and decoded each for itself) until there are 200. The call is a fresh process, as a user makes it.
"""

import argparse
import cProfile
import io
import json
import pstats
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from scantling import catalog

MODELS = 200
TARGET_S = 2.0
REPEATS = 3


def models(folders, scratch):
    """200 names and paths, each a config of its own where there are enough."""
    named = catalog.named()
    found = [str(path) for folder in folders for path in sorted(folder.glob("*.json"))]
    found += named
    for name, entry in named.items():
        if len(found) >= MODELS:
            break
        path = scratch / f"{name}.json"
        path.write_text(json.dumps(entry.config), encoding="utf-8")
        found.append(str(path))
    return found[:MODELS]


def call(names):
    """Seconds, answers and complaints of one fresh process."""
    command = [sys.executable, "-m", "scantling", "analyze", "--json", *names]
    start = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    spent = time.perf_counter() - start
    answers = done.stdout.splitlines() if len(names) > 1 else [done.stdout]
    return spent, [json.loads(line) for line in answers], done.stderr.splitlines()


def profile(names):
    """Where the time of the call goes, imports included as far as they are lazy."""
    from scantling.cli.inspect import analyze

    found = cProfile.Profile()
    with redirect_stdout(io.StringIO()):
        found.runcall(analyze.main, ["--json", *names], standalone_mode=False)
    pstats.Stats(found).sort_stats("cumulative").print_stats(45)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        names = models(given.folders, Path(scratch))
        if given.profile:
            profile(names)
            return 0
        one = min(call(names[:1])[0] for _ in range(REPEATS))
        many, answers, complaints = min(
            (call(names) for _ in range(REPEATS)), key=lambda found: found[0]
        )
    print(f"{len(answers)} of {len(names)} configs in one call: {many:.2f} s, target {TARGET_S} s")
    print(f"one config: {one:.2f} s, the call of {len(names)} is {many / one:.1f} × that")
    print(f"a further config: {(many - one) / (len(names) - 1) * 1e3:.1f} ms")
    for line in complaints:
        print(line)
    return int(many > TARGET_S)


if __name__ == "__main__":
    sys.exit(main())
