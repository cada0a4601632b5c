"""Absurd values of options: one line, exit status 2, nothing printed before."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from scantling import cli
from scantling.errors import ScantlingError

DESIGN = "design --params 1B"
PLAN = "plan llama-3.1-8b"
SERVE = "serve llama-3.1-8b --gpu h100"
LINT = "lint llama-3.1-8b"
ANALYZE = "analyze llama-3.1-8b"
HUGE = [
    *((DESIGN, o) for o in ("--gpus", "--serve-gpus", "--context", "--serve-context", "--tokens",
                            "--serve-batch", "--tp", "--pp", "--ep", "--depths", "--rows",
                            "--ladder")),
    *((PLAN, o) for o in ("--gpus", "--gpus-per-node", "--context", "--tokens", "--batch", "--tp",
                          "--pp", "--virtual", "--rank")),
    *((SERVE, o) for o in ("--gpus", "--context", "--batch", "--in", "--out", "--tp")),
    *((LINT, o) for o in ("--gpus", "--tp", "--pp", "--ep", "--cp", "--virtual", "--dcp",
                          "--context", "--batch")),
    *((ANALYZE, o) for o in ("--context", "--batch")),
]  # fmt: skip


def refused(words):
    """What is said in one line, where nothing was printed before."""
    found = CliRunner().invoke(cli.group, words.split(), standalone_mode=False)
    assert isinstance(found.exception, ScantlingError), (words, found.exception, found.stdout[:80])
    assert found.stdout == ""
    assert len(str(found.exception).splitlines()) == 1
    return str(found.exception)


@pytest.mark.parametrize(("verb", "option"), HUGE)
def test_a_number_beyond_every_machine_is_refused_before_anything_is_printed(verb, option):
    assert refused(f"{verb} {option} 1e30")


@pytest.mark.parametrize("verb", [DESIGN, PLAN, LINT])
def test_a_trillion_chips_are_refused_before_anything_is_printed(verb):
    assert "gpus" in refused(f"{verb} --gpus 1e12")


@pytest.mark.parametrize("tp", ["1e12", "-1", "0"])
def test_a_degree_that_is_none_is_refused_before_anything_is_printed(tp):
    assert "tp" in refused(f"{LINT} --tp {tp}")


@pytest.mark.parametrize("rest", ["--dtype abc", "--baseline abc"])
def test_analyze_checks_what_it_is_given_before_it_prints(rest):
    assert "abc" in refused(f"{ANALYZE} {rest}")


def test_an_empty_method_of_tuning_is_no_pre_training():
    found = CliRunner().invoke(cli.group, [*PLAN.split(), "--finetune", ""], standalone_mode=False)
    assert isinstance(found.exception, ScantlingError)


@pytest.mark.parametrize(("asked", "option"), [
    ("--list-legal --fix d_model=1024 --active 3B", "--active"),
    ("--list-legal --fix d_model=1024 --mixer mla", "--mixer"),
    ("--list-legal --fix d_model=1024 --quant fp8", "--quant"),
    ("--list-legal --fix d_expert=1024 --params 1B", "--params"),
    ("--list-legal --like qwen2.5-7b --fix d_head=64", "--fix"),
    ("--backtest cerebras-gpt-1.3b --params 13B", "--params"),
    ("--backtest cerebras-gpt-1.3b --vocab 5k", "--vocab"),
    ("--params 1B --workers 2 --engine here", "--workers"),
])  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(asked, option):
    assert refused(f"design {asked}").startswith(option)
