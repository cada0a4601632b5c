"""CPU time to import the package, to print the help, and to analyse one spec.

    python benchmarks/start.py

Each is shown in milliseconds and as a ratio to a bare interpreter in the same run.
"""

import resource
import subprocess
import sys
import timeit

import scantling


def cpu_ms(*command, repeat=7):
    found = []
    for _ in range(repeat):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found.append(used * 1e3)
    return min(found)


def main():
    bare = cpu_ms(sys.executable, "-c", "pass")
    for name, command in {
        "bare interpreter": ("-c", "pass"),
        "import scantling": ("-c", "import scantling"),
        "scantling --help": ("-m", "scantling", "--help"),
        "scantling analyze gpt2": ("-m", "scantling", "analyze", "gpt2"),
    }.items():
        used = cpu_ms(sys.executable, *command)
        print(f"{name}: {used:.0f} ms CPU, {used / bare:.1f} × a bare interpreter")
    for name in ("llama-3.1-8b", "deepseek-v3"):
        spec = scantling.model(name)
        runs = min(timeit.repeat(lambda s=spec: scantling.analyze(s), number=100, repeat=5))
        print(f"analyze {name} through the API: {runs * 10:.3f} ms")


if __name__ == "__main__":
    main()
