"""CPU time to lint one config after start-up.

    python benchmarks/lint.py [CONFIG…]

Without arguments four named models and, where they stand beside the project, the public configs.
Each is linted once before the clock starts, so that data files are read.
"""

import pathlib
import statistics
import sys
import time

from scantling.rules import lint, setting

CONFIGS = pathlib.Path(__file__).parents[2] / "shared" / "data" / "configs"


def milliseconds(given, where, repeat=5):
    lint(given, where)
    found = []
    for _ in range(repeat):
        before = time.process_time()
        lint(given, where)
        found.append(1e3 * (time.process_time() - before))
    return min(found)


def main():
    names = sys.argv[1:] or ["llama-3.1-8b", "gpt2", "qwen3-30b-a3b", "deepseek-v3"]
    for text, where in (("no options", setting()), ("H100, TP 8, FP8 blocks", setting(
        gpu="h100-sxm", tp=8, quant="fp8-block", context=8192))):  # fmt: skip
        for name in names:
            print(f"lint {name}, {text}: {milliseconds(name, where):.2f} ms CPU")
    files = [] if sys.argv[1:] else sorted(CONFIGS.glob("*.json"))
    if files:
        found = sorted(milliseconds(path, setting(), repeat=2) for path in files)
        middle, most = statistics.median(found), found[int(0.95 * len(found))]
        print(f"lint of {len(found)} public configs: median {middle:.2f} ms, "
              f"95 % below {most:.2f} ms, most {found[-1]:.2f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
