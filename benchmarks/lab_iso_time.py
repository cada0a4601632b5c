"""Whether shapes that `iso(time=…)` makes equal take equal time: predicted beside measured.

    python benchmarks/lab_iso_time.py [--time 0.05] [--depths 2,4,8,16] [--chip my-cpu.toml]

One thread; steps of all shapes by turns, by the clock of the thread, so that what else the machine
does hits all alike; the median of the rounds. Without --chip the reference CPU is taken, which is
another machine: then the ratio of measured to predicted says how much faster this one is, and what
counts is how far that ratio is from shape to shape. Beside it shapes of equal body parameters, to
see what not matching time would have cost.
"""

import argparse
import os
import statistics
import time
from importlib.resources import files

import torch

from scantling.costs.count import parameters
from scantling.lab.match import counter, iso
from scantling.lab.model import Decoder
from scantling.lab.optimizers import optimizers

CPU = str(files("scantling.data") / "reference_cpu.toml")
BATCH, CONTEXT = 16, 64


def step_of(spec):
    """A function that takes one training step of a new model."""
    model = Decoder(spec)
    made = optimizers(model, model.groups(1e-3, 0.1), "adamw", {})
    tokens = torch.randint(int(spec.vocab_size), (BATCH, CONTEXT + 1))

    def step():
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for one in made:
            one.step()
            one.zero_grad()

    return step


def measured(shapes, rounds):
    """Seconds of a step of each shape."""
    steps = [step_of(s.spec) for s in shapes]
    for step in steps * 3:
        step()
    found = [[] for _ in steps]
    for _ in range(rounds):
        for times, step in zip(found, steps, strict=True):
            begun = time.thread_time()
            step()
            times.append(time.thread_time() - begun)
    return [statistics.median(times) for times in found]


def main():
    """Print both tables."""
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--time", type=float, default=0.05)
    ask.add_argument("--depths", default="2,4,8,16")
    ask.add_argument("--chip", default=CPU)
    ask.add_argument("--rounds", type=int, default=31)
    given = ask.parse_args()
    torch.set_num_threads(1)
    depths = [int(d) for d in given.depths.split(",")]
    predict = counter("time", CONTEXT, BATCH, given.chip)
    by_time = iso(depths, time=given.time, chip=given.chip)
    body = float(parameters(by_time[len(by_time) // 2].spec).body)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, torch {torch.__version__}")
    for name, shapes in (("time", by_time), ("body", iso(depths, body=body))):
        seconds = measured(shapes, given.rounds)
        ratios = [s / predict(one.spec) for one, s in zip(shapes, seconds, strict=True)]
        print(f"\nequal in {name}: shape, body, predicted ms, measured ms, ratio")
        for one, s, ratio in zip(shapes, seconds, ratios, strict=True):
            print(f"  {one.name:<16} {int(parameters(one.spec).body):>9,} "
                  f"{1e3 * predict(one.spec):8.1f} {1e3 * s:8.1f} {ratio:6.2f}")  # fmt: skip
        print(f"  slowest over fastest: measured {max(seconds) / min(seconds):.2f}, "
              f"ratios {max(ratios) / min(ratios):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
