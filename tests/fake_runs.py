"""Training runs that cost nothing, with a loss whose truth is known."""

import math
import os
import pathlib
import random
import signal
import time

from scantling.lab.study import Data, Outcome, Pace

BEST_RATE = 0.003
CURVE = 0.05
"""Nats lost a squared factor e away from the best rate."""


class Fake:
    """Loss = 3 + the effect of the depth + a bowl in log rate + noise of the seed.

    Args:
        effects: Nats by depth.
        sd: Of the noise between runs.
        best: The best rate by depth.
        world: Another world has other noise.
        log: A file that a line is added to for every run.
        delay_s: Seconds a run takes.
    """

    name = "fake"

    def __init__(
        self,
        effects=None,
        sd=0.02,
        best=None,
        world=0,
        log=None,
        delay_s=0.0,
        step_s=0.001,
        deadly=None,
    ):
        self.effects, self.sd, self.best = effects or {}, sd, best or {}
        self.world, self.log, self.delay_s, self.step_s = world, log, delay_s, step_s
        self.deadly = deadly

    def data(self, _):
        return Data("fake", 256, 1.0, 3.9)

    def data_hash(self, trial):
        return self.data(trial).hash

    def pace(self, trial):
        return Pace(0.0, self.step_s * trial.spec.n_layer, 0.0)

    def run(self, trial):
        depth = int(trial.spec.n_layer)
        if self.log is not None:
            with pathlib.Path(self.log).open("a") as sink:
                sink.write(f"{depth} {trial.rate} {trial.seed}\n")
        if depth == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.delay_s)
        if trial.rate > 1:
            return Outcome({}, trial.tokens, 0.0, "the loss is no number from step 3 on")
        draw = random.Random(f"{self.world} {depth} {trial.rate} {trial.seed}")
        far = math.log(trial.rate / self.best.get(depth, BEST_RATE))
        loss = 3 + self.effects.get(depth, 0.0) + CURVE * far**2 + draw.gauss(0, self.sd)
        return Outcome({"choose": loss + draw.gauss(0, 0.002), "loss": loss,
                        "accuracy": float(loss < 3.1)}, trial.tokens, 0.01, row={
            "loss": loss, "tokens": trial.tokens, "depth": depth, "lr": trial.rate,
            "width": int(trial.spec.d_model), "params_total": 10_000 * depth,
        })  # fmt: skip
