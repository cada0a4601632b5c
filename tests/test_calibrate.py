"""A machine is measured, fitted by the costs' own functions, and written as a chip that reads back.

Nothing here asserts how long anything takes: times are made up from constants that are known, and
the fit has to find them again.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec

import msgspec
import pytest
from msgspec.structs import replace

import scantling
from scantling.calibrate import calibrate
from scantling.calibrate.cases import Case, aligned, kernels, models, spec_of
from scantling.calibrate.fit import (
    as_training,
    changed,
    errors,
    fit_attention,
    fit_gemm,
    fit_light,
    fit_step,
    half_width,
    mean_error,
    of_kind,
)
from scantling.calibrate.fitted import alignment, fitted
from scantling.calibrate.machine import cpu_name, first_chip
from scantling.calibrate.predict import alone, interval, predicted
from scantling.calibrate.timing import Clock, Sample, clock, measure, ready, visit
from scantling.errors import FieldError
from scantling.hardware import (
    Measured,
    Rates,
    chip,
    chip_text,
    chips,
    cluster,
    read_chip,
    write_chip,
)

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
needs_scipy = pytest.mark.skipif(find_spec("scipy") is None, reason="scipy is not installed")

RATE = 1e11
MEASURED = Measured(
    when="2026-01-01T00:00:00+00:00", device="cpu", threads=1, clock="thread",
    software=(("torch", "2.4"),), quick=False, seconds=1.0, load=0.0, spread=0.0, errors=(),
)  # fmt: skip


def machine(**rates):
    """A CPU as it would be before a fit."""
    return first_chip("cpu", 1, Rates(**(rates or {"fp32": RATE})), 3e10)


def true_machine():
    """A CPU with constants that are known."""
    one = changed(machine(), "gemm", matmul=0.9, k_half=20.0, wave_half=0.02, sharpness=2.0,
                  bandwidth_factor=0.6, launch_s=4e-6, tiles=(), droop=0.0, step_s=0.0)  # fmt: skip
    one = changed(one, "alignment", single=(1.3, 1.0, 1.5), pair=(1.1, 1.0, 1.2),
                  load=(1.0, 1.0, 1.1))  # fmt: skip
    one = changed(one, "elementwise", norm=0.3, activation=0.5, norm_s=8e-6, activation_s=5e-6,
                  bandwidth_factor=0.5, launch_s=5e-6, sharpness=1.0,
                  slower=((19.0, 1.0), (26.6, 4.0)))  # fmt: skip
    return changed(one, "step", matmul=1.1, eager=2.0, flash2=1.2, cold=0.2, optimizer=0.6,
                   loss=0.5, gap_eager_s=2e-6)  # fmt: skip


def samples_of(one, cases):
    """What a machine with those constants would measure."""
    found = predicted(one, cases)
    return [Sample(case=c, seconds=s, spread=0.0) for c, s in zip(cases, found, strict=True)]


def cases(*kinds):
    all_of_them = kernels(RATE, 16e9, ("fp32",), quick=False) + models(RATE, "fp32", quick=False)
    return [c for c in all_of_them if c.kind in kinds]


LAUNCH = Sample(case=Case(kind="launch"), seconds=2e-6, spread=0.0)


# ---------------------------------------------------------------- what is measured


def test_products_have_widths_that_no_power_of_two_divides_and_some_that_64_does():
    widths = {w for c in cases("gemm") for w in c.shape}

    for divisor in (8, 16, 64):
        assert any(w % divisor for w in widths)
    assert any(w % 64 == 0 for w in widths)
    assert {c.shape[1] % 64 for c in aligned(RATE, "fp32").values()} == {0, 63, 62, 60, 56, 48}


def test_attention_covers_head_widths_from_32_to_256_forward_and_backward():
    found = cases("attention")

    assert {c.shape[-1] for c in found} == {32, 64, 96, 128, 256}
    assert {c.backward for c in found} == {True, False}


def test_about_a_third_of_the_kernels_is_held_out_and_half_of_the_forward_passes():
    for kind in ("gemm", "attention", "norm", "activation"):
        found = cases(kind)
        assert 0.15 < sum(c.held for c in found) / len(found) < 0.5, kind
    assert sum(c.held for c in cases("forward")) == len(cases("forward")) // 2


def test_no_case_is_there_twice_and_no_product_is_longer_than_a_tenth_of_a_second():
    for rate in (3e9, RATE, 4e12, 5e14):
        found = kernels(rate, 64e9, ("fp32", "bf16"), quick=False)
        assert len(found) == len(set(found))
        assert all(c.flops <= 0.1 * rate for c in found if c not in aligned(rate, "fp32").values())


def test_the_same_machine_gets_the_same_cases():
    assert kernels(RATE, 16e9, ("fp32",), quick=True) == kernels(RATE, 16e9, ("fp32",), quick=True)


# ---------------------------------------------------------------- how it is timed


def test_a_short_case_is_repeated_and_its_time_divided():
    ticks = iter(i * 0.0011 for i in range(9))
    runs = []

    each = visit(lambda: runs.append(1), Clock(lambda: next(ticks), list, "test"))

    assert each == pytest.approx(0.0011)
    assert len(runs) == 3


def test_the_fastest_visit_stands_and_the_spread_says_what_the_others_were():
    now = [0.0]
    cost = {1: [0.01, 0.02, 0.03], 2: [0.5, 0.5, 0.5]}
    at = {1: 0, 2: 0}

    def build(case):
        def run():
            m = case.shape[0]
            now[0] += cost[m][min(max(at[m] - 1, 0), 2)]  # the first run warms up
            at[m] += 1

        return run

    both = [Case(kind="gemm", shape=(m, 1, 1)) for m in (1, 2)]
    found = measure(both, build, Clock(lambda: now[0], list, "test"), rounds=3, seconds=1e9,
                    progress=lambda *_: None)  # fmt: skip

    assert [s.seconds for s in found] == pytest.approx([0.01, 0.5])
    assert [s.spread for s in found] == pytest.approx([1.0, 0.0])


def test_what_does_not_fit_in_memory_is_left_out_and_other_errors_are_not_hidden():
    def build(case):
        def run():
            if case.shape[0] > 1:
                raise RuntimeError(wrong)

        return run

    both = [Case(kind="gemm", shape=(m, 1, 1)) for m in (1, 2)]
    wrong = "CUDA out of memory"
    assert list(ready(both, build)) == both[:1]
    with pytest.raises(FieldError, match="finds no memory"):
        ready(both[1:], build)
    wrong = "a bug"
    with pytest.raises(RuntimeError, match="a bug"):
        ready(both, build)


def test_one_thread_is_timed_by_its_own_clock():
    assert clock("cpu", 1).name == "thread"
    assert clock("cpu", 4).name == "wall"


# ---------------------------------------------------------------- what is fitted


@needs_scipy
def test_the_fit_of_products_finds_the_time_of_shapes_it_has_not_seen():
    truth = true_machine()
    samples = [LAUNCH, *samples_of(truth, cases("gemm"))]

    found = fit_gemm(machine(), samples)

    assert mean_error(errors(found, of_kind(samples, "gemm", held=True))) < 0.03
    assert found.constants.alignment.single[0] == pytest.approx(1.3, abs=0.05)


@needs_scipy
def test_the_fit_of_attention_serves_prompts_and_both_passes_of_training():
    truth = changed(machine(), "attention", prefill=((32.0, 0.3), (256.0, 0.6)),
                    prefill_tail=0.0, prefill_query_passes=1.0, prefill_kv_passes=1.0)  # fmt: skip
    found_cases = [replace(c, backward=False) for c in cases("attention")]
    samples = [LAUNCH, *samples_of(truth, list(dict.fromkeys(found_cases)))]
    back = [replace(s, case=replace(s.case, backward=True), seconds=2.5 * s.seconds)
            for s in samples[1:]]  # fmt: skip

    found = fit_attention(machine(), samples + back)

    assert mean_error(errors(found, of_kind(samples, "attention", held=True))) < 0.1
    assert mean_error(errors(found, as_training([*samples[1:], *back]))) < 0.1


@needs_scipy
def test_the_fit_of_unfused_attention_finds_the_bytes_of_a_score():
    truth = machine()
    kernels_of = tuple(
        replace(k, forward=((64.0, 0.7),), backward=((64.0, 0.7),), scores=30.0, mask=0.0,
                launches=1.0, passes=1.0, tail=0.0) if k.name == "unfused" else k
        for k in truth.constants.attention.training
    )  # fmt: skip
    truth = changed(truth, "attention", training=kernels_of, prefill_launch_s=6e-6)
    wanted = [c for c in cases("unfused") if not c.held]
    trained = [replace(c, kind="trained", form="unfused") for c in wanted]
    samples = [replace(s, case=c) for s, c in zip(samples_of(truth, trained), wanted, strict=True)]
    fused = [replace(s, case=replace(s.case, kind="attention")) for s in samples]

    found = fit_attention(machine(), [LAUNCH, *samples, *fused])

    assert mean_error(errors(found, as_training(samples))) < 0.1
    assert found.constants.attention.kernel("unfused").scores == pytest.approx(30, rel=0.2)


@needs_scipy
def test_the_fit_of_light_work_finds_how_much_slower_large_pieces_are():
    truth = true_machine()
    samples = [LAUNCH, *samples_of(truth, [c for c in cases("norm", "activation", "add")
                                           if not c.backward])]  # fmt: skip

    found = fit_light(machine(), samples)

    assert mean_error(errors(found, samples[1:])) < 0.05
    assert found.constants.elementwise.slowed(2**27) > 2.5


@needs_scipy
def test_the_fit_of_steps_predicts_a_model_it_has_not_seen():
    truth = true_machine()
    base = changed(truth, "step", matmul=1.0, eager=1.0, flash2=1.0, cold=0.1, optimizer=1.0,
                   loss=1.0, gap_eager_s=2e-6)  # fmt: skip
    samples = [LAUNCH, *samples_of(truth, cases("step"))]
    samples += [
        Sample(case=c, spread=0.0, seconds=alone(truth, c) * factor)
        for kind, factor in (("optimizer", 0.6), ("loss", 1.0)) for c in cases(kind)
    ]  # fmt: skip
    unseen = Case(kind="step", shape=(5, 448, 7, 7, 64, 1500, 9000, 2, 256), form="gated")

    found = fit_step(base, samples)

    assert abs(errors(found, samples_of(truth, [unseen]))[0]) < 0.05


@needs_scipy
def test_a_disturbed_measurement_does_not_bend_the_rest():
    truth = true_machine()
    samples = [LAUNCH, *samples_of(truth, cases("gemm"))]
    disturbed = [replace(s, seconds=s.seconds * (5 if i % 9 == 4 else 1))
                 for i, s in enumerate(samples)]  # fmt: skip

    found = fit_gemm(machine(), disturbed)

    assert mean_error(errors(found, of_kind(samples, "gemm", held=True))) < 0.08


@needs_scipy
def test_a_whole_fit_marks_what_was_measured_and_sets_the_rate_of_other_dtypes():
    truth = replace(true_machine(), rates=Rates(fp32=RATE, bf16=2.5 * RATE))
    wanted = kernels(RATE, 16e9, ("fp32", "bf16"), quick=True)
    wanted = [c for c in wanted if c.kind not in {"copy", "launch", "loss", "optimizer", "unfused"}
              and not (c.kind in {"norm", "activation"} and c.backward)]  # fmt: skip
    wanted = [c for c in wanted if not c.backward] + models(RATE, "fp32", quick=True)
    samples = [LAUNCH, *samples_of(truth, wanted)]

    found, left_out = fitted(machine(fp32=RATE, bf16=2 * RATE), samples)

    assert len(left_out) == 2

    assert found.rate("bf16") == pytest.approx(2.5 * RATE, rel=0.1)
    assert found.constants.gemm.kind == found.constants.step.kind == "measured"
    assert found.constants.gemm.sources == ("calibrate",)
    assert found.constants.collective.kind == "assumed"


def test_an_error_is_the_mean_of_relative_errors_and_a_width_covers_nine_in_ten():
    assert mean_error([math.log(1.2), math.log(0.9)]) == pytest.approx(0.15)
    assert half_width([0.1] * 1000) == pytest.approx(1.645 * 0.1, rel=1e-2)
    assert half_width([]) == 0.5


def test_alignment_is_the_time_an_operation_over_that_of_the_neighbour_that_64_divides():
    found = aligned(RATE, "fp32")
    samples = [
        Sample(case=c, seconds=c.flops * (2e-11 if divisor == 1 else 1e-11), spread=0.0)
        for divisor, c in found.items()
    ]

    assert dict(alignment(samples, RATE, "fp32")) == {1: 2.0, 2: 1.0, 4: 1.0, 8: 1.0, 16: 1.0}


def test_the_interval_of_a_case_holds_its_value():
    one = true_machine()
    for case in [*cases("gemm")[:3], *cases("attention")[:2], *cases("step")[:1]]:
        low, high = interval(one, case)
        assert low <= predicted(one, [case])[0] <= high


def test_a_whole_model_case_is_the_spec_it_says():
    spec = spec_of(cases("step")[0])

    assert (spec.n_layer, spec.d_model, spec.n_head, spec.d_ff, spec.vocab_size) == (
        2, 320, 5, 1280, 6000)  # fmt: skip
    assert spec.tied


# ---------------------------------------------------------------- the chip file


def test_every_chip_with_a_rate_reads_back_as_it_was_written(tmp_path):
    file = tmp_path / "chip.toml"
    for one in chips().values():
        if one.dtypes:
            write_chip(one, file)
            assert read_chip(file) == one


def test_a_chip_file_stands_for_a_name_wherever_one_is_taken(tmp_path):
    file = tmp_path / "mine.toml"
    write_chip(replace(chip("h100"), key="mine"), file)

    assert chip(str(file)).key == "mine"
    assert cluster(str(file), 16).chip.key == "mine"
    assert scantling.design(params=125_000_000, gpu=str(file), tokens=10**9).chosen


def test_a_file_changed_under_the_same_name_is_read_again(tmp_path):
    file = tmp_path / "mine.toml"
    for key in ("first", "second-one"):
        write_chip(replace(chip("h100"), key=key), file)
        assert chip(str(file)).key == key


def test_strings_with_quotes_newlines_and_accents_survive(tmp_path):
    notes = 'say "µ" \\ and\nagain\x7f\x01 é'
    write_chip(replace(chip("h100"), notes=notes), tmp_path / "a.toml")

    assert read_chip(tmp_path / "a.toml").notes == notes


def test_what_was_measured_when_and_with_what_is_in_the_file(tmp_path):
    one = replace(machine(), measured=MEASURED)
    write_chip(one, tmp_path / "a.toml")
    found = read_chip(tmp_path / "a.toml").measured

    assert found == MEASURED
    assert 'when = "2026-01-01T00:00:00+00:00"' in chip_text(one)


def broken(text, old, new):
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("memory_bytes = ", "memory_byte = ", "unknown field `memory_byte`"),
        ("[constants.gemm]\n", "[constants.gem]\n", "gem"),
        ("matmul_error = ", "matmul_eror = ", "matmul_eror"),
        ("bf16 = 989", 'bf16 = "989', "is no TOML"),
        ("bf16 = 989", "bf16 = -989", "rates.bf16"),
        ("bf16 = 989000000000000.0", "bf16 = nan", "rates.bf16"),
        ("memory_bytes = ", "memory_bytes = 0 # ", "memory_bytes"),
        ("sm_count = 132", "sm_count = 0", "sm_count"),
        ("launch_s = ", "launch_s = inf # ", "constants.gemm.launch_s: inf is not finite"),
        ('key = "h100-sxm"', "", "missing required field `key`"),
        ("[constants.gemm]", "[constants", "is no TOML"),
    ],
)
def test_a_broken_file_is_one_line_that_names_the_file_and_the_entry(tmp_path, old, new, said):
    file = tmp_path / "broken.toml"
    file.write_text(broken(chip_text(chip("h100")), old, new), "utf-8")

    with pytest.raises(FieldError) as error:
        chip(str(file))

    assert str(file)[:20] in str(error.value)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_without_a_table_of_constants_or_of_rates_is_refused(tmp_path):
    text = chip_text(chip("h100"))
    table = text[text.index("[constants.step]") : text.index("[constants.alignment]")]
    for part, said in ((table, "missing required field `step`"), ("bf16", "")):
        file = tmp_path / "a.toml"
        file.write_text(text.replace(part, "") if said else "key = 1", "utf-8")
        with pytest.raises(FieldError, match=said or "is no chip"):
            read_chip(file)


@pytest.mark.parametrize("text", ["", "\x00\x01", "[[[", "key = 'x'\n" * 2, "a.b.c = 1"])
def test_anything_else_is_refused_in_one_line(tmp_path, text):
    file = tmp_path / "a.toml"
    file.write_bytes(text.encode())

    with pytest.raises(FieldError, match="chip file"):
        read_chip(file)


def test_a_file_that_is_not_there_says_what_makes_one(tmp_path):
    with pytest.raises(FieldError, match="scantling calibrate --out FILE writes one"):
        chip(str(tmp_path / "none.toml"))
    with pytest.raises(FieldError, match="cannot be read"):
        chip(str(tmp_path) + "/")


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "a.toml"
    write_chip(chip("h100"), file)
    before = file.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))

    with pytest.raises(KeyboardInterrupt):
        write_chip(chip("a100"), file)

    assert file.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.toml"]


# ---------------------------------------------------------------- the verb


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"device": "tpu"}, "device tpu is not known; use cpu or cuda"),
        ({"threads": 0}, "threads 0 must be at least 1"),
        ({"out": "no/such/folder/chip.toml"}, "is in a folder that is not there"),
        ({"out": os.sep}, "is a folder; name a file in it"),
    ],
)
@needs_torch
@needs_scipy
def test_bad_input_is_refused_before_anything_is_measured(given, said):
    with pytest.raises(FieldError, match=said):
        calibrate(**given)


@needs_torch
@needs_scipy
def test_a_device_that_is_not_here_is_refused():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(FieldError, match="torch finds no CUDA device; use cpu"):
        calibrate("cuda")


@pytest.mark.parametrize(("module", "extra"), [("torch", "lab"), ("scipy", "fit")])
def test_without_torch_or_scipy_one_line_says_what_to_install(monkeypatch, module, extra):
    import scantling.calibrate.machine as at

    monkeypatch.setattr(at, "find_spec", lambda name: None if name == module else object())
    with pytest.raises(FieldError, match=rf"needs {module}; pip install 'scantling\[.*{extra}"):
        calibrate()


def test_importing_the_verb_imports_no_torch():
    code = ("import sys, scantling; scantling.calibrate; import scantling.cli.calibrate; "
            "assert callable(scantling.calibrate); print('torch' in sys.modules)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


def test_the_names_of_processors_are_read_and_a_strange_file_is_none():
    assert cpu_name("vendor_id\t: GenuineIntel\nmodel name\t: Intel(R)  Xeon\n") == (
        "Intel", "Intel(R) Xeon")  # fmt: skip
    assert cpu_name("Hardware : BCM2835") == ("", "")


@needs_torch
@needs_scipy
def test_the_verb_measures_writes_and_prints_its_errors(tmp_path, monkeypatch, capsys):
    """A handful of tiny cases through the whole way; what they take is nobody's business."""
    import scantling.calibrate.fitted as whole
    from scantling.cli import group

    tiny = [
        Case(kind="launch"),
        *(Case(kind="gemm", shape=(32, 32 + 16 * i, 48), form=form, held=i == 1)
          for i, form in enumerate(("forward", "grad_input", "grad_weight"))),
        *(Case(kind=kind, shape=(1, 2, 1 + i, 128, 32), backward=b, held=i == 1)
          for kind in ("attention", "unfused") for i in (0, 1) for b in (False, True)),
        *(Case(kind=kind, shape=(8 << i, 64), form=form, backward=b, held=i == 1)
          for i in (0, 1)
          for kind, form in (("norm", "rms"), ("norm", "layer"), ("activation", "gated"),
                             ("activation", "plain"))
          for b in (False, True)),
        Case(kind="add", shape=(8, 64)), Case(kind="copy", shape=(4096,)),
        Case(kind="loss", shape=(8, 100)), Case(kind="optimizer", shape=(1000, 2)),
        *aligned(RATE, "fp32").values(),
    ]  # fmt: skip
    small = [
        Case(kind=kind, shape=(1, 32, 2, 2 - i, 16, 48, 64, 1, 16), form=form,
             held=kind == "forward")
        for i, form in enumerate(("plain", "gated")) for kind in ("forward", "step")
    ]  # fmt: skip
    monkeypatch.setattr(whole, "kernels", lambda *_, **__: tiny)
    monkeypatch.setattr(whole, "models", lambda *_, **__: small)
    monkeypatch.setattr(whole, "PROBE", {"cpu": (64, 64, 64)})
    monkeypatch.setattr(whole, "WORTH", math.inf)
    file = tmp_path / "cpu.toml"

    assert group(["calibrate", "--threads", "1", "--out", str(file)], standalone_mode=False) == 0
    said = capsys.readouterr().out
    assert "step" in said
    assert str(file) in said

    one = scantling.chip(str(file))
    assert one.measured.threads == 1
    assert one.measured.clock == "thread"
    assert dict(one.measured.software).keys() >= {"scantling", "torch", "python"}
    assert {e.kind for e in one.measured.errors} == {"gemm fp32", "attention", "unfused attention",
                                                     "light, alone", "forward", "step"}  # fmt: skip

    group(["calibrate", "--threads", "1", "--out", str(file), "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert msgspec.convert(found["chip"], type(one)) == scantling.chip(str(file))
    assert len(found["samples"]) == len(tiny) + len(small)
