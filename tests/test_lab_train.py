"""Training: against plain loops, torch's own optimizers, and itself when it is cut short."""

import json
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import types

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from scantling import catalog
from scantling.errors import FieldError, ScantlingError
from scantling.laws.runs import read_runs

torch = pytest.importorskip("torch", reason="the lab needs torch")

from scantling.cli.lab_train import train as command  # noqa: E402 - only where torch is
from scantling.lab import mirrors, run_folder, torch_needed  # noqa: E402
from scantling.lab.corpus import Corpus  # noqa: E402
from scantling.lab.data import of_corpus  # noqa: E402
from scantling.lab.expected import check_memory, memory, reference, step_seconds  # noqa: E402
from scantling.lab.grammar_text import Grammar  # noqa: E402
from scantling.lab.model import Decoder  # noqa: E402
from scantling.lab.optimizers import (  # noqa: E402
    NEWTON_SCHULZ,
    Muon,
    factor,
    optimizers,
    orthogonal,
)
from scantling.lab.shrink import shrink  # noqa: E402
from scantling.lab.tasks import generated  # noqa: E402
from scantling.lab.train import TrainingRun, dtype_of, train  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


CONFIG = {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 32, "head_dim": 8,
          "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
          "tie_word_embeddings": False}  # fmt: skip


def small(vocab_size=32, **changes):
    return catalog.load(CONFIG | {"vocab_size": vocab_size} | changes).spec


def run_of(**given):
    given = {"spec": small(), "data": generated("mqar", batch_size=6), "steps": 12, "lr": 3e-3,
             "device": "cpu", "record_every": 3} | given  # fmt: skip
    return TrainingRun(**given)


def weights(found):
    return run_folder.weights(found.model)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


# ---------------------------------------------------------------- schedules and optimizers


def test_cosine_is_that_of_torch():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.1)
    for step in range(20):
        assert factor(step, 20, "cosine", 0, 0.1) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


def test_schedules_rise_over_warmup_and_fall_as_their_name_says():
    for schedule in ("cosine", "wsd", "constant"):
        rates = [factor(i, 100, schedule, 10) for i in range(100)]
        assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
        assert rates[9] == max(rates) == 1
    assert [factor(i, 100, "wsd", 10) for i in (10, 80, 90, 95, 99)] == pytest.approx(
        [1, 1, 0.5, 0.25, 0.05]
    )
    assert factor(99, 100, "constant", 10) == 1


def test_orthogonal_keeps_singular_vectors_and_moves_singular_values_by_the_quintic():
    torch.manual_seed(0)
    for shape in ((12, 5), (5, 12), (3, 7, 7)):
        x = torch.randn(shape, dtype=torch.float64)
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        s = s / x.norm(dim=(-2, -1))[..., None]
        a, b, c = NEWTON_SCHULZ
        for _ in range(5):
            s = a * s + b * s**3 + c * s**5
        assert torch.allclose(orthogonal(x), u @ torch.diag_embed(s) @ vh, atol=1e-8)


def test_muon_is_that_of_torch():
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    torch.manual_seed(0)
    mine = torch.nn.Parameter(torch.randn(16, 40))
    theirs = torch.nn.Parameter(mine.detach().clone())
    one = Muon([mine], lr=0.02, weight_decay=0.1)
    other = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    start = mine.detach().clone()
    for _ in range(5):
        mine.grad = torch.randn(16, 40)
        theirs.grad = mine.grad.clone()
        one.step()
        other.step()
    # Theirs is orthogonal in bfloat16, whose steps are 1/256.
    moved = (theirs - start).detach().norm()
    assert float((mine - theirs).detach().norm() / moved) < 0.01


def test_muon_takes_matrices_apart_that_stand_side_by_side():
    """Query, key and value in one product move as three matrices alone would."""
    torch.manual_seed(0)
    joined = torch.nn.Parameter(torch.randn(32, 12))
    alone = [torch.nn.Parameter(t.clone()) for t in joined.detach().split((16, 8, 8))]
    one = Muon([{"params": [joined], "rows": (16, 8, 8)}], lr=0.02, weight_decay=0.1)
    other = Muon(alone, lr=0.02, weight_decay=0.1)
    for _ in range(3):
        joined.grad = torch.randn(32, 12)
        for p, grad in zip(alone, joined.grad.split((16, 8, 8)), strict=True):
            p.grad = grad.clone()
        one.step()
        other.step()

    assert torch.allclose(joined, torch.cat(alone), atol=1e-6)


def test_muon_moves_hidden_matrices_and_no_bias_of_experts():
    """gpt-oss keeps the biases of its experts stacked: two axes, and no matrix."""
    model = Decoder(shrink(catalog.model("gpt-oss-20b"), 200_000))
    names = {id(p): n for n, p in model.named_parameters()}
    found = {type(o): {names[id(p)].rpartition(".")[2] for g in o.param_groups for p in g["params"]}
             for o in optimizers(model, model.groups(1e-2), "muon", {})}  # fmt: skip

    assert found[Muon] == {"weight", "up_EFD", "down_EDF"}
    assert {"up_bias_EF", "down_bias_ED"} <= found[torch.optim.AdamW]


@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_run_is_a_plain_loop_of_torch(clip):
    run = run_of(clip=clip, schedule="cosine", warmup=2, weight_decay=0.1)
    found = train(run)
    model = Decoder(run.spec, seed=0)
    groups = model.groups(1.0, 0.1)
    optimizer = torch.optim.AdamW(
        [{"params": g["params"], "weight_decay": g["weight_decay"]} for g in groups],
        lr=3e-3, betas=(0.9, 0.95), eps=1e-8, foreach=False,
    )  # fmt: skip
    losses = []
    for step in range(12):
        x = (step - 2) / 10
        rate = (step + 1) / 2 if step < 2 else (1 + math.cos(math.pi * x)) / 2
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * rate
        tokens, targets = run.task.batch(step, 0)
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    assert found.losses == pytest.approx(losses, rel=1e-5)
    for name, weight in model.named_parameters():
        assert torch.allclose(weights(found)[name], weight, atol=2e-6), name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_micro_batches_sum_to_the_whole_batch(optimizer):
    """Also where passes hold different numbers of targets."""

    class Uneven:
        def __init__(self):
            self.one = generated("copy", batch_size=6, symbols=8, length=6)

        def __getattr__(self, name):
            return getattr(self.__dict__["one"], name)

        def batch(self, step, seed):
            tokens, targets = self.one.batch(step, seed)
            targets = targets.clone()
            targets[:2, 8:] = -100
            return tokens, targets

    whole = train(run_of(data=Uneven(), optimizer=optimizer))
    parts = train(run_of(data=Uneven(), optimizer=optimizer, micro_batch=2))
    assert parts.losses == pytest.approx(whole.losses, rel=2e-4)


def test_rates_by_name_freeze_and_slow_what_they_name():
    run = run_of(rates={"decoder.layers.0": 0.0, "decoder": 0.5, "head": 0.0}, steps=6)
    before = run_folder.weights(Decoder(run.spec, seed=0))
    after = weights(train(run))
    moved = {name: float((after[name] - before[name]).abs().max()) for name in before}
    frozen = {n for n in moved if n.startswith(("decoder.layers.0.", "head."))}
    assert frozen
    assert {n for n, by in moved.items() if by == 0} == frozen
    with pytest.raises(FieldError, match=r"layers\.9 is the beginning of no parameter's name"):
        train(run_of(rates={"layers.9": 0.5}))


def test_training_learns_what_is_there_and_no_more():
    """Between the entropy of single bytes and the known floor, and better than before."""
    grammar = Grammar(seed=1)
    text = grammar.text(200_000)
    task = of_corpus(Corpus("g", text, grammar.bits_per_byte), batch=8, context=64)
    counts = [text.count(bytes([b])) for b in set(text)]
    single = -sum(c / len(text) * math.log2(c / len(text)) for c in counts)
    found = train(run_of(spec=small(vocab_size=256), data=task, steps=150, lr=6e-3))
    bits = found.judged["report"]["bits_per_byte"]
    assert grammar.bits_per_byte < bits < 0.6 * single
    assert bits == pytest.approx(found.judged["report"]["loss"] / math.log(2))


# ---------------------------------------------------------------- cut short, and gone on with


def measured(record):
    return {k: v for k, v in record.items() if k not in {"seconds", "tokens_per_s", "remaining_s"}}


class Cut(Exception):  # noqa: N818 - no error of ours
    """Stands for whatever ends a process."""


@pytest.mark.parametrize(("optimizer", "told_s"), [("adamw", 2.0), ("muon", 2.0), ("adamw", 0.0)])
def test_a_run_cut_anywhere_ends_with_the_same_bits(tmp_path, monkeypatch, optimizer, told_s):
    """With no time between words every step has a checkpoint, also those between records."""
    monkeypatch.setattr("scantling.lab.train.TOLD_S", told_s)
    given = {"optimizer": optimizer, "checkpoint_s": 0.0, "judge_every": 5, "steps": 14,
             "record_every": 3 if told_s == 0 else 1}  # fmt: skip
    straight = train(run_of(**given, out=tmp_path / "straight"))
    cuts = random.Random(optimizer)
    folder = tmp_path / "cut"
    for _ in range(4):
        left = cuts.randrange(1, 5)

        def stop(record, left=left):
            stop.seen += "loss" in record
            if stop.seen == left:
                raise Cut

        stop.seen = 0
        try:
            train(run_of(**given, out=folder), on_step=stop)
        except Cut:
            continue
    gone_on = train(run_of(**given, out=folder))
    assert gone_on.losses == straight.losses
    assert equal(weights(gone_on), weights(straight))
    assert gone_on.judged == straight.judged
    theirs = [measured(r) for r in run_folder.read_metrics(folder)]
    assert theirs == [measured(r) for r in run_folder.read_metrics(tmp_path / "straight")]


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from test_lab_train import run_of
from scantling.lab.train import train
train(run_of(out={out!r}, steps=120, record_every=2, checkpoint_s=0.0),
      on_step=lambda record: print(record["step"], flush=True))
"""


def test_a_killed_process_leaves_a_folder_that_goes_on(tmp_path):
    here = pathlib.Path(__file__).parent
    code = SCRIPT.format(tests=str(here), out=str(tmp_path / "killed"))
    environment = os.environ | {"PYTHONPATH": str(here.parent / "src"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE,
                          env=environment) as process:  # fmt: skip
        while int(process.stdout.readline()) < 20:
            pass
        time.sleep(random.random() / 20)
        os.kill(process.pid, signal.SIGKILL)
    given = {"steps": 120, "record_every": 2, "checkpoint_s": 1e9}
    killed = run_of(**given, out=tmp_path / "killed")
    begun = len(run_folder.saved(tmp_path / "killed")["progress"]["losses"])
    assert 10 <= begun < 120
    gone_on, straight = train(killed), train(run_of(**given))
    assert gone_on.losses == straight.losses
    assert equal(weights(gone_on), weights(straight))


def test_a_run_that_ended_is_not_run_again(tmp_path):
    first = train(run_of(out=tmp_path))
    told = []
    again = train(run_of(out=tmp_path), on_step=told.append)
    assert [r["step"] for r in told] == [12]
    assert (again.losses, again.judged) == (first.losses, first.judged)
    assert again.row() == first.row()


def test_a_folder_of_another_run_is_refused_by_what_differs(tmp_path):
    train(run_of(out=tmp_path, steps=2))
    with pytest.raises(FieldError, match=r"holds another run: lr 0.003 there, 0.001 here"):
        train(run_of(out=tmp_path, steps=2, lr=1e-3))
    with pytest.raises(FieldError, match=r"holds another run: spec"):
        train(run_of(out=tmp_path, steps=2, spec=small(hidden_size=48)))
    (tmp_path / "checkpoint.pt").write_bytes(b"half of it")
    with pytest.raises(FieldError, match="cannot be read; remove it to begin anew"):
        train(run_of(out=tmp_path, steps=2))


def test_the_folder_says_all_a_result_depends_on(tmp_path):
    train(run_of(out=tmp_path, data="grammar:n_bytes=30000", spec=small(vocab_size=256), batch=4,
                 context=32, steps=3))  # fmt: skip
    asked = json.loads((tmp_path / "run.json").read_text())
    assert len(asked["data"]["hash"]) == 64
    assert asked["data"]["floor_bits_per_byte"] == pytest.approx(Grammar().bits_per_byte)
    assert asked["seed"] == 0
    assert asked["spec"]["d_model"] == small().d_model
    assert asked["machine"].keys() >= {"device", "threads", "torch", "code", "python"}
    runs = read_runs(tmp_path / "result.jsonl")
    assert len(runs) == 1
    assert float(runs.features.tokens[0]) == 3 * 4 * 32
    lines = run_folder.read_metrics(tmp_path)
    assert {"step", "tokens", "loss", "bits_per_byte", "seconds", "tokens_per_s"} <= set(lines[0])
    assert {r["slice"] for r in lines if "slice" in r} == {"choose", "report"}


# ---------------------------------------------------------------- two processes


TWO = """
import json, pathlib, sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from test_lab_train import run_of
from scantling.lab.distributed import leave
from scantling.lab.train import train
found = train(run_of(out=pathlib.Path({out!r}), optimizer={optimizer!r}, steps=5))
leave()
"""


@pytest.mark.parametrize("optimizer", ["muon"])  # AdamW moves tables, head and norms in both
def test_two_processes_are_one(tmp_path, optimizer):
    """FSDP2 over gloo: the same losses and weights but for the order of sums."""
    here = pathlib.Path(__file__).parent
    script = tmp_path / "two.py"
    script.write_text(TWO.format(tests=str(here), out=str(tmp_path / "two"), optimizer=optimizer))
    environment = os.environ | {"PYTHONPATH": str(here.parent / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(script)], env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    alone = train(run_of(optimizer=optimizer, steps=5))
    kept = run_folder.saved(tmp_path / "two")
    assert kept["progress"]["losses"] == pytest.approx(alone.losses, rel=1e-5)
    for name, weight in weights(alone).items():
        assert torch.allclose(kept["model"][name], weight, atol=1e-4), name
    # A checkpoint is whole: a run begun on two processes goes on alone.
    gone_on = train(run_of(optimizer=optimizer, steps=5, out=tmp_path / "two"))
    assert gone_on.steps == 5
    assert gone_on.judged["report"]["loss"] == pytest.approx(alone.judged["report"]["loss"],
                                                             rel=1e-4)  # fmt: skip


# ---------------------------------------------------------------- what it costs


def test_a_step_is_predicted_and_measured_by_the_same_clock():
    told = []
    found = train(run_of(), on_step=told.append)
    assert told[0]["predicted_step_s"] == pytest.approx(
        float(step_seconds(found.run.spec, 6, found.run.task.context, "fp32", reference()).value_s)
    )
    assert found.clock == "thread"
    assert found.step_s > 0
    assert found.row()["step_s_predicted"] == told[0]["predicted_step_s"]


def test_what_cannot_fit_is_refused_before_it_is_built():
    with pytest.raises(FieldError, match=r"memory training needs about .* are free"):
        check_memory(memory(catalog.model("llama-3.1-405b"), 1, 128, "fp32"), torch.device("cpu"))


def test_memory_is_predicted_and_measured():
    told = []
    found = train(run_of(), on_step=told.append)
    row = found.row()
    assert told[0]["predicted_peak_bytes"] == row["peak_bytes_predicted"]
    assert row["peak_bytes_predicted"] == round(memory(
        found.run.spec, 6, found.run.task.context, "fp32").total)  # fmt: skip
    assert row["peak_bytes"] is None or row["peak_bytes"] >= 0


def test_auto_takes_bf16_only_where_it_pays(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    cpu = torch.device("cpu")
    wide = run_of(dtype="auto", spec=small(hidden_size=128))
    assert dtype_of(wide, cpu) == "bf16"
    assert dtype_of(run_of(dtype="auto", spec=small(hidden_size=64)), cpu) == "fp32"
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert dtype_of(wide, cpu) == "fp32"


def test_bf16_trains_to_about_the_same_loss():
    full, half = train(run_of()), train(run_of(dtype="bf16"))
    assert half.losses != full.losses
    assert half.losses == pytest.approx(full.losses, rel=0.02)


def test_the_loss_compiles_as_one_graph():
    """Traced, without the compiler behind it, which takes half a minute."""
    run = run_of()
    model = Decoder(run.spec, seed=0)
    tokens, targets = run.task.batch(0, 0)
    model.warm(run.task.context)
    traced = torch.compile(model.loss, dynamic=False, fullgraph=True, backend="eager")
    assert traced(tokens, targets, None).item() == model.loss(tokens, targets).item()


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_rate_of_ten_diverges_and_says_so(optimizer, tmp_path):
    found = train(run_of(lr=10.0, optimizer=optimizer, steps=60, out=tmp_path))
    assert found.status == "diverged"
    assert "at a learning rate of 10" in found.why
    assert not found.judged
    assert train(run_of(lr=10.0, optimizer=optimizer, steps=60, out=tmp_path)).why == found.why
    assert json.loads((tmp_path / "result.jsonl").read_text())["status"] == "diverged"


def test_a_loss_that_is_no_number_ends_the_run(monkeypatch):
    first = Decoder.loss
    monkeypatch.setattr(Decoder, "loss", lambda *a, **k: first(*a, **k) * math.nan)
    found = train(run_of())
    assert found.why == "the loss is nan at step 1 at a learning rate of 0.003"


def test_a_model_that_its_last_step_broke_has_diverged(tmp_path):
    """No step after it has a loss that would tell."""
    found = train(run_of(steps=1, lr=1e38, warmup=0, schedule="constant", out=tmp_path))
    assert found.status == "diverged"
    assert "held-back data is no number after step 1" in found.why
    assert found.judged == {}
    for name in ("metrics.jsonl", "result.jsonl"):
        assert "NaN" not in (tmp_path / name).read_text()


def test_no_step_of_a_healthy_run_is_called_diverged():
    for rate in (1e-4, 3e-2):
        assert train(run_of(lr=rate, steps=20)).status == "done"


WRONG = {
    "no length": ({"steps": None}, "steps or tokens must be given"),
    "both lengths": ({"tokens": 1000}, "and not both"),
    "too few tokens": ({"steps": None, "tokens": 100}, "fewer than the 138 of one batch"),
    "no rate": ({"lr": 0.0}, "lr 0.0 must be above 0"),
    "no such schedule": ({"schedule": "cosin"}, "did you mean cosine"),
    "no such optimizer": ({"optimizer": "adam"}, "did you mean adamw"),
    "no such dtype": ({"dtype": "fp16"}, "dtype fp16 is not known"),
    "no such device": ({"device": "gpu0"}, "device gpu0 is not known"),
    "a seed below 0": ({"seed": -1}, "seed -1 must not be below 0"),
    "a decay below 0": ({"weight_decay": -0.1}, "weight_decay -0.1 must not be below 0"),
    "a rate below 0": ({"rates": {"head": -1.0}}, "rates head -1.0 must not be below 0"),
    "no such param": ({"param": "mupp"}, "did you mean mup"),
    "a long warmup": ({"warmup": 13}, "warmup 13 must be 0 to steps 12"),
    "a small vocabulary": ({"spec": small(vocab_size=31)}, "must be at least the 32 of mqar"),
    "another batch": ({"batch": 4}, "batch 4 is 6 in the task given"),
    "muon and mup": ({"optimizer": "muon", "param": "mup"}, "has no rates for mup"),
}


@pytest.mark.parametrize(("asked", "told"), WRONG.values(), ids=WRONG)
def test_a_wrong_run_is_one_clear_line(asked, told):
    with pytest.raises(ScantlingError, match=told) as caught:
        train(run_of(**asked))
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- encoder-decoders


def test_an_encoder_reads_the_first_half_and_the_decoder_goes_on():
    config = {"model_type": "t5", "vocab_size": 256, "d_model": 32, "d_kv": 8, "d_ff": 64,
              "num_layers": 1, "num_heads": 4}  # fmt: skip
    spec = catalog.load(config).spec
    found = train(run_of(spec=spec, data="grammar:n_bytes=30000", batch=4, context=16, steps=4))
    assert found.status == "done"
    assert found.judged["report"]["bits_per_byte"] > 0


# ---------------------------------------------------------------- mirrors and the command


def test_mirrors_pass_numbers_on(monkeypatch, tmp_path):
    seen = []
    fake = types.SimpleNamespace(init=lambda **k: seen.append(k["name"]),
                                 log=lambda row, step: seen.append((step, row)))  # fmt: skip
    records = [{"step": 2, "loss": 1.5, "bits_per_byte": None},
               {"step": 2, "slice": "report", "loss": 1.25}]  # fmt: skip
    for name in ("wandb", "trackio"):
        seen.clear()
        monkeypatch.setitem(sys.modules, name, fake)
        mirror = mirrors.mirror(name, tmp_path / "run", {"lr": 1})
        for record in records:
            mirror(record)
        assert seen == ["run", (2, {"loss": 1.5}), (2, {"report/loss": 1.25})]


def test_a_mirror_that_is_not_there_is_one_clear_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(FieldError, match="mirror wandb is not installed; pip install wandb"):
        mirrors.mirror("wandb", tmp_path, {})
    with pytest.raises(FieldError, match="did you mean wandb"):
        mirrors.mirror("wanbd", tmp_path, {})


ASKED = ["qwen3-0.6b", "--params", "60k", "--data", "recall:pairs=4", "--steps", "6",
         "--device", "cpu", "--threads", "1"]  # fmt: skip


def test_the_command_trains_and_reports():
    done = CliRunner().invoke(command, ASKED, catch_exceptions=False, standalone_mode=False)
    assert done.return_value == 0
    assert "vocabulary 32" in done.stdout
    assert "held back to" in done.stdout
    assert "no model can be below 0.0000 bits/byte here" in done.stdout
    assert "by the thread clock" in done.stdout


def test_the_command_gives_json_and_a_status():
    done = CliRunner().invoke(command, [*ASKED, "--json"], standalone_mode=False)
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    assert found["judged"]["report"]["loss"] == found["loss"]
    done = CliRunner().invoke(command, [*ASKED[:-6], "--steps", "80", "--lr", "10", *ASKED[-4:]],
                              standalone_mode=False)  # fmt: skip
    assert done.return_value == 1
    assert "diverged: the loss is" in done.stdout


def test_what_is_set_holds_while_the_rest_is_made_small():
    small = ["qwen3-0.6b", "--data", "recall:pairs=4", "--steps", "2", "--device", "cpu",
             "--threads", "1", "--set", "n_layer=3"]  # fmt: skip
    done = CliRunner().invoke(command, [*small, "--params", "200k"], standalone_mode=False)
    assert "3 layers of width 64" in done.stdout
    done = CliRunner().invoke(command, [*small, "--params", "62k"], standalone_mode=False)
    assert str(done.exception).startswith("--params 62,000 are fewer than the ")
    assert str(done.exception).endswith("of this model made as small as it goes with n_layer=3")


def test_a_folder_of_something_else_is_no_run(tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"?")
    with pytest.raises(FieldError, match=r"holds checkpoint.pt of something else; give another"):
        train(run_of(out=tmp_path))
    train(run_of(out=tmp_path / "mine"))
    (tmp_path / "mine" / "checkpoint.pt").write_bytes(b"?")
    with pytest.raises(FieldError, match=r"cannot be read; remove it to begin anew"):
        train(run_of(out=tmp_path / "mine"))


def test_a_loss_that_is_no_number_ends_a_run_at_its_step(monkeypatch):
    """A step in a thousand has a record; the loss is looked at in between."""
    monkeypatch.setattr("scantling.lab.train.TOLD_S", 0.0)
    found = train(run_of(steps=5000, record_every=1000, lr=1e30, clip=None))
    assert found.status == "diverged"
    assert found.steps < 10


def test_without_torch_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setattr(torch_needed, "find_spec", lambda _name: None)
    done = CliRunner().invoke(command, ASKED, standalone_mode=False)
    assert str(done.exception) == "run needs torch; pip install 'scantling[lab]'"


def test_what_the_lab_cannot_build_is_one_clear_line():
    spec = replace(small(), head=None)
    with pytest.raises(ScantlingError) as caught:
        train(run_of(spec=spec))
    assert "\n" not in str(caught.value)
