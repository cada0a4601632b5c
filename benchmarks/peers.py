"""Public counters beside `scantling analyze` on ten configs, against the real classes.

    python benchmarks/peers.py [--write docs/peers.md]

Each counter runs in an environment of its own under the cache folder, made here at the first run
from the package index; none is a dependency of scantling. The truth is the class of transformers
built on the meta device in the environment that runs this script, which needs the test extra.
"""

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import scantling
from scantling import catalog
from scantling.formats import hf

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scantling-peers"
WORKER = Path(__file__).with_name("peers_worker.py")
START_S, CONFIG_S = 90, 60
"""Time for a tool to import what it needs, and for one config."""

TORCH = "torch==2.13.0"
NEEDS = {
    "calflops": ["calflops==0.3.2", TORCH, "transformers"],
    "llm-flops": ["llm-flops==0.0.1"],
    "hf-vram-calc": ["hf-vram-calc==1.0.9", TORCH, "transformers"],
    "accelerate": ["accelerate==1.15.0", TORCH, "transformers"],
}
"""transformers in the version of the truth, so that a difference is the tool's."""
NOT_OFFERED = {
    "calflops": {"kv"},
    "hf-vram-calc": {"flops"},
    "accelerate": {"flops", "kv"},
}

CATALOGUE = {
    "gpt2": 1024,
    "llama-3.1-8b": 8192,
    "qwen3-8b": 8192,
    "gemma-2-9b": 8192,
    "mixtral-8x7b": 8192,
    "deepseek-v3": 8192,
    "qwen3-30b-a3b": 8192,
    "phi-3-mini": 4096,
}
"""Tokens of the sequence: 8k, or what the model's positions allow."""
OTHERS = {
    "falcon-h1-0.5b": (8192, {
        "model_type": "falcon_h1", "hidden_size": 1024, "intermediate_size": 2048,
        "num_hidden_layers": 36, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 64, "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64,
        "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_chunk_size": 128,
        "max_position_embeddings": 16384, "vocab_size": 32784, "tie_word_embeddings": False,
    }),
    "t5-base": (512, {
        "model_type": "t5", "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12,
        "num_decoder_layers": 12, "num_heads": 12, "vocab_size": 32128,
        "feed_forward_proj": "relu",
    }),
}  # fmt: skip
WARM_UP = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 90,
           "num_hidden_layers": 2, "num_attention_heads": 4}  # fmt: skip

QUANTITIES = {"parameters": "parameters", "flops": "FLOPs", "kv": "KV bytes"}


def write_configs(folder):
    """The ten configs as scantling writes them, and a warm-up; TOKENS=FOLDER by name."""
    given = {name: (tokens, catalog.named()[name].config) for name, tokens in CATALOGUE.items()}
    found = {}
    for name, (tokens, config) in {"warm-up": (64, WARM_UP), **given, **OTHERS}.items():
        own = hf.write(hf.read(config).spec, like=config["model_type"])
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(own, indent=1), encoding="utf-8")
        found[name] = f"{tokens}={folder / name}"
    return found


def environment(tool, cache):
    """The interpreter of a tool's environment, made where missing; or why it does not install."""
    folder = cache / tool
    python = folder / "bin" / "python"
    needs = [f"{n}=={version(n)}" if n == "transformers" else n for n in NEEDS[tool]]
    done = folder / "installed.json"
    if done.is_file() and json.loads(done.read_text("utf-8")) == needs:
        return python, None
    print(f"installing {tool}", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needs]
    ran = subprocess.run(pip, check=False, capture_output=True, text=True)
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
        return None, f"does not install: {last}"
    done.write_text(json.dumps(needs), encoding="utf-8")
    return python, None


def ask(python, tool, configs):
    """A tool's answers by config; one that ends or stalls the process loses only that config."""
    warm, *rest = configs.items()
    answers = {}
    while rest:
        command = [python, WORKER, tool, *(given for _, given in [warm, *rest])]
        limit = START_S + CONFIG_S * len(rest)
        try:
            ran = subprocess.run(command, check=False, capture_output=True, timeout=limit)
            output, why = ran.stdout, f"the process ended with {ran.returncode}"
        except subprocess.TimeoutExpired as stalled:
            output, why = stalled.stdout or b"", f"no answer in {limit} s"
        lines = output.decode().splitlines()
        for (name, _), line in zip(rest, lines, strict=False):
            answers[name] = json.loads(line)
        rest = rest[len(lines) :]
        if rest:
            answers[rest.pop(0)[0]] = {"error": why}
    return answers


def error_of(value, true):
    """A relative error as a cell; only an equal number is called exact."""
    if value == true:
        return "exact"
    if not true:
        return "no truth"
    relative = (value - true) / true
    return f"{relative:+.2%}" if abs(relative) >= 1e-4 else f"{relative:+.1e}"


def cells(tool, answer, true):
    """Value and error of each quantity; a cell without a number says why."""
    row = []
    for key in QUANTITIES:
        if key in NOT_OFFERED.get(tool, ()):
            row += ["not counted by it", "—"]
        elif "error" in answer:
            row += ["fails", "—"]
        else:
            value = round(answer[key])
            row += [f"{value:,}", "" if tool == "truth" else error_of(value, true[key])]
    return [*row, f"{answer['ms']:,.1f}" if "error" not in answer else "—"]


def summary(results):
    """Per tool: of how many configs each quantity is exact, and the median time."""
    yield ["tool", *(f"{name} exact" for name in QUANTITIES.values()), "worst errors", "median ms"]
    names = list(results["truth"])
    for tool, answers in results.items():
        if tool == "truth":
            continue
        row, worst = [], []
        for key, label in QUANTITIES.items():
            if key in NOT_OFFERED.get(tool, ()):
                row.append("not counted")
                continue
            pairs = [
                (round(answers[name][key]), results["truth"][name][key])
                for name in names
                if key in answers[name]
            ]
            exact = sum(ours == true for ours, true in pairs)
            near = sum(abs(ours / true - 1) <= 0.01 for ours, true in pairs)
            row.append(f"{exact} of {len(names)}, {near} within 1 %")
            if pairs:
                ours, true = max(pairs, key=lambda pair: abs(pair[0] / pair[1] - 1))
                worst.append(f"{label} {error_of(ours, true)}")
        failed = sum("error" in answer for answer in answers.values())
        worst += [f"{failed} fail"] if failed else []
        times = [answer["ms"] for answer in answers.values() if "error" not in answer]
        median = f"{statistics.median(times):,.1f}" if times else "—"
        yield [tool, *row, "; ".join(worst), median]


def table(rows):
    head, *body = [[str(cell).replace("|", "/") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def detail(results, configs):
    heads = [cell for name in QUANTITIES.values() for cell in (name, "error")]
    yield ["config", "tokens", "tool", *heads, "ms"]
    for name, given in configs.items():
        for tool, answers in results.items():
            tokens = given.partition("=")[0]
            yield [name, tokens, tool, *cells(tool, answers[name], results["truth"][name])]


def page(results, configs):
    """The whole of docs/peers.md."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    versions = {
        tool: next((a["version"] for a in answers.values() if "version" in a), "not installed")
        for tool, answers in results.items()
        if tool != "truth"
    }
    reasons = [
        f"- {tool} on {name}: {answer['error']}"
        for tool, answers in results.items()
        for name, answer in answers.items()
        if "error" in answer
    ]
    command = " ".join(["python", *sys.argv])
    return "\n".join([
        "# Other counters on the same ten configs",
        "",
        f"Written on {today} by `{command}`; nothing here is edited by hand. Python "
        f"{platform.python_version()}, {os.cpu_count()} cores, "
        f"transformers {version('transformers')}, torch {version('torch')}; "
        + ", ".join(f"{tool} {number}" for tool, number in versions.items()) + ".",
        "",
        ("The truth is the real class on the meta device in eager attention: its parameters with a "
        "tied matrix once, the matrix products of one forward pass as torch's counter sees them "
        "(chosen experts only, the causal mask not discounted), and the keys and values it keeps "
        "in bf16, a window's layer no more than the window. One sequence of the tokens named; "
        "T5 has them in both stacks. Milliseconds are one call with a config.json, after a "
        "warm-up on another model in the same process: an order of magnitude, as the machine does "
        "other work. Each tool may address 24 GiB."),
        "",
        ("A config is written by scantling and given as a folder. Where a tool takes only hub ids "
        "(llm-flops, accelerate) the function behind the download is called: "
        "`benchmarks/peers_worker.py` has each call. llm-flops and calflops count some "
        "element-wise operations as FLOPs, which the truth does not; accelerate builds the model "
        "without its head, as its command does, and counts buffers as parameters."),
        "",
        table(summary(results)),
        "",
        "## Each config",
        "",
        table(detail(results, configs)),
        "",
        "## What failed",
        "",
        *(reasons or ["Nothing."]),
        "",
    ])  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="FILE", help="Also write the page here.")
    parser.add_argument("--cache", type=Path, default=CACHE, help="Environments and configs.")
    given = parser.parse_args()
    configs = write_configs(given.cache / "configs")
    names = [name for name in configs if name != "warm-up"]
    results = {}
    for tool in ("truth", "scantling", *NEEDS):
        python, why = (
            (sys.executable, None) if tool not in NEEDS else environment(tool, given.cache)
        )
        print(f"asking {tool}", file=sys.stderr)
        results[tool] = (
            {name: {"error": why} for name in names} if why else ask(python, tool, configs)
        )
    text = page(results, {name: configs[name] for name in names})
    print(text)
    if given.write:
        given.write.write_text(text, encoding="utf-8")
    exact = all(
        results["scantling"][name].get(key) == results["truth"][name].get(key)
        for name in names
        for key in QUANTITIES
    )
    print(f"scantling {scantling.__version__}: {'all exact' if exact else 'NOT exact'}",
          file=sys.stderr)  # fmt: skip
    return int(not exact)


if __name__ == "__main__":
    sys.exit(main())
