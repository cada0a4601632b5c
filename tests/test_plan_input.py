"""What a plan is asked: wrong input is one line that says what would be right, and what was not
given is chosen so that it can be planned."""

import json

import pytest
from click.testing import CliRunner

from scantling import calibrate, cli
from scantling.errors import FieldError, ScantlingError
from scantling.hardware import chip
from scantling.search.plan_question import question
from scantling.search.plans import plan


def refused(*args):
    """The error of a command line."""
    found = CliRunner().invoke(cli.group, ["plan", *map(str, args)], standalone_mode=False)
    assert isinstance(found.exception, ScantlingError), (found.exception, found.stdout)
    return str(found.exception)


WRONG = [
    (("--days", 0), "--days 0.0 must be above zero"),
    (("--days", "nan"), "--days nan must be above zero"),
    (("--rank", 8), "--rank 8 needs --finetune lora or qlora"),
    (("--finetune", "lora", "--targets", ""), "--targets names no matrix"),
    (("--finetune", "lora", "--targets", "q_proj,nonsense"),
     "targets nonsense names no matrix of this model; it has q, k, v, o, gate, up, down"),
    (("--gpus", 8, "--tp", 8, "--pp", 2), "tp 8 × pp 2 = 16 must divide gpus 8"),
    (("--gpus", 8, "--tp", 2, "--pp", 2, "--dp", 1, "--cp", 1),
     "tp 2 × pp 2 × dp 1 × cp 1 = 4 must be gpus 8"),
    (("--phases", ""), "phases has an empty phase"),
    (("--phases", "1T@8k,"), "phases 1T@8k, has an empty phase"),
    (("--solve", "context", "--context", "8k"), "--context 8192 contradicts --solve context"),
    (("--solve", "batch", "--micro-batch", 4), "--micro-batch 4 contradicts --solve batch"),
    (("--solve", "batch", "--vary", "gpus=8:16:8"), "--vary gpus=8:16:8 contradicts --solve batch"),
    (("--dtype", "nvfp4", "--gpu", "h100-sxm"), "dtype nvfp4 has no rate on h100-sxm"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "said"), WRONG)
def test_wrong_input_is_one_line(args, said):
    told = refused("llama-3.1-8b", *args)

    assert told.startswith(said)
    assert "\n" not in told


def test_expert_parallelism_divides_the_experts():
    with pytest.raises(FieldError, match="ep 3 must divide the 8 experts"):
        question("mixtral-8x7b", gpus=3, ep=3)


def test_adapters_on_stacked_experts_alone_train_nothing():
    for target in ("experts_up", "w1"):
        with pytest.raises(FieldError, match="nothing would be trained"):
            question("mixtral-8x7b", finetune="lora", targets=(target,))


def test_a_micro_batch_that_cuts_no_replica_is_a_reason_and_not_a_fault():
    found = plan("llama-3.1-8b", gpus=8, batch=128, context="8k", tokens="1B", micro_batch=3)

    assert found.choice is None
    assert found.counts.considered == found.counts.invalid > 0
    assert any("micro-batches of 3" in r.reason for r in found.rejected)


@pytest.mark.parametrize("gpus", [3, 24, 40, 96, 1000])
def test_an_assumed_batch_can_be_shared_by_chips_that_are_no_power_of_two(gpus):
    q = question("gpt2", gpus=gpus)
    odd = gpus // (gpus & -gpus)

    assert q.batch % odd == 0
    assert 0.75 < q.batch / question("gpt2", gpus=2 ** (gpus.bit_length() - 1)).batch < 2


def test_a_batch_that_was_given_stays_as_it_is():
    assert question("gpt2", gpus=3, batch=128).batch == 128


def test_times_of_a_chip_nobody_trained_on_are_said_to_be_inherited():
    for key, inherited in (("h100-sxm", False), ("mi300x", True), ("tpu-v5p", True)):
        args = ["plan", "llama-3.2-1b", "--gpu", key, "--gpus", "8", "--tokens", "1B", "--json"]
        told = json.loads(CliRunner().invoke(cli.group, args, standalone_mode=False).stdout)

        assert any("inherited" in note for note in told["notes"]) == inherited


def test_a_family_nobody_measured_has_the_widest_intervals():
    known, like, unseen = (chip(k).constants.step for k in ("h100-sxm", "h800-sxm", "mi300x"))

    assert known.widen * known.error < like.widen * like.error < unseen.widen * unseen.error


def test_one_row_is_the_choice():
    args = ["plan", "gpt2", "--gpus", "8", "--tokens", "1B", "--rows", "1"]
    found = CliRunner().invoke(cli.group, args, standalone_mode=False)

    assert found.exception is None, found.exception


def test_calibrate_takes_no_more_threads_than_there_are_cores():
    with pytest.raises(FieldError, match="threads 100000 is more than the"):
        calibrate.calibrate(threads=100_000)


def test_the_longest_context_is_no_longer_than_the_positions_learned():
    args = ["plan", "gpt2", "--gpus", "1", "--tokens", "1B", "--json"]
    at_most = json.loads(CliRunner().invoke(cli.group, args, standalone_mode=False).stdout)
    solved = CliRunner().invoke(cli.group, [*args, "--solve", "context"], standalone_mode=False)

    assert at_most["limits"]["longest_context"] <= 1024
    assert json.loads(solved.stdout)["value"] == 1024


def test_a_range_says_below_its_table_why_a_value_is_none():
    args = ["plan", "llama-3.1-8b", "--gpus", "8", "--tokens", "1B", "--vary", "tp=2:3"]
    lines = CliRunner().invoke(cli.group, args, standalone_mode=False).stdout.splitlines()

    assert lines[-1] == "3: tp 3 must divide gpus 8"
    assert max(map(len, lines)) <= 120


def test_zero_is_a_stage_of_zero():
    args = ["plan", "gpt2", "--gpus", "2", "--tokens", "1B", "--vary", "zero=0:3", "--json"]
    told = json.loads(CliRunner().invoke(cli.group, args, standalone_mode=False).stdout)

    assert [row["value"] for row in told["rows"]] == [0, 1, 2, 3]


def test_every_part_that_alone_exceeds_the_chip_is_among_what_has_to_change():
    args = ["plan", "llama-3.1-405b", "--gpus", "1", "--tokens", "1B"]
    lines = CliRunner().invoke(cli.group, args, standalone_mode=False).stdout.splitlines()
    told = lines[lines.index("What would have to change:") :]

    # 406 B parameters: 812 GB of weights, twice that of gradients, against 80 GB
    assert all(any(line.startswith(f"  {part}:") for line in told)
               for part in ("weights", "gradients", "optimizer"))  # fmt: skip


def test_no_interval_says_that_a_chip_may_exceed_its_peak():
    found = plan("llama-3.1-8b", gpu="mi250x", gpus=16, tp=2, tokens="1B", context="8k", batch=128)

    assert found.choice.step.mfu.high_s <= 1 + 1e-12
    assert found.choice.step.step.low_s < found.choice.step.step.value_s
