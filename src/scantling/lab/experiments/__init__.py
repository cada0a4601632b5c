"""Experiments: each puts one rule on the shape of models to the test, one file a question."""

from scantling.lab.experiments import (
    activation_sparsity,
    depth_width,
    ffn_sharing,
    gradient_norms,
    head_width_recall,
    lr_transfer,
    swiglu_gelu,
    vocabulary,
    windows,
)
from scantling.lab.experiments.registry import EXPERIMENTS, PRESETS, Experiment, experiment

__all__ = [
    "EXPERIMENTS",
    "PRESETS",
    "Experiment",
    "activation_sparsity",
    "depth_width",
    "experiment",
    "ffn_sharing",
    "gradient_norms",
    "head_width_recall",
    "lr_transfer",
    "swiglu_gelu",
    "vocabulary",
    "windows",
]
