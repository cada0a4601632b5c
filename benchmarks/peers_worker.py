"""One counter on a list of config folders; a JSON line a folder. Started by peers.py.

    python peers_worker.py TOOL TOKENS=FOLDER …

Runs in the environment of the tool, so it imports nothing of the project except for ``scantling``
and needs only the standard library beside the tool. Every counter gets what a user has, a folder
with a config.json, and is asked for parameters, forward FLOPs of one sequence and its bf16 cache.
"""

import contextlib
import json
import os
import resource
import sys
import time
import types
import warnings
from importlib.metadata import version
from pathlib import Path

MEMORY_LIMIT = 24 * 2**30
"""Address space; a tool that allocates real weights says so instead of filling the machine."""
REASON_LENGTH = 170


def own_config(folder):
    """The class's reading of a config, with attention that counters can see."""
    import transformers

    own = transformers.AutoConfig.from_pretrained(folder)
    own._attn_implementation = "eager"  # noqa: SLF001 (the documented argument is of from_config)
    # With a padding token GPT-2 looks into the ids, and ids on the meta device have no values.
    own.pad_token_id = None
    return own


def on_meta(folder):
    """The real class with its head, without weights, and its inputs."""
    import torch
    import transformers

    own = own_config(folder)
    auto = transformers.AutoModelForCausalLM
    if own.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    with torch.device("meta"):
        return auto.from_config(own, dtype=torch.bfloat16).eval()


def inputs(model, tokens):
    import torch

    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    found = {"input_ids": ids}
    return found | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})


def truth(folder, tokens):
    """The real class: its parameters, the matmuls it ran, the keys and values it kept."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = on_meta(folder)
    with contextlib.suppress(Exception):  # a class without experts has nothing to set
        # The other implementations either run every expert or are no operator that is counted.
        model.set_experts_implementation("batched_mm")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        kept = model(**inputs(model, tokens), use_cache=True).past_key_values
    stacks = [kept]
    if hasattr(kept, "cross_attention_cache"):
        stacks = [kept.self_attention_cache, kept.cross_attention_cache]
    total = 0
    for layer in (layer for stack in stacks for layer in stack.layers):
        width = sum(t.shape[1] * t.shape[3] for t in (layer.keys, layer.values))
        # A window of w keeps w − 1 between calls: the w-th is the token of the next call.
        window = getattr(layer, "sliding_window", None) or tokens
        total += 2 * width * min(tokens, window)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "flops": counter.get_total_flops(),
        "kv": total,
    }


def scantling(folder, tokens):
    """What the verb ``analyze --json`` prints, through the same function."""
    import scantling as own

    found = own.analyze(str(folder), context=tokens).to_json()
    cache = found["kv_cache"]
    kv = cache["bytes"]
    # Keys and values only: those of an encoder are a state too, a recurrence's state is neither.
    if own.load(str(folder)).spec.encoder is None:
        kv -= cache["state_bytes"]
    return {
        "parameters": found["params"]["total"],
        "flops": found["flops"]["forward"],
        "kv": kv,
    }


def calflops(folder, tokens):
    """Hooks on the real class on the meta device, eager, as its documentation builds it."""
    from calflops import calculate_flops

    model = on_meta(folder)
    flops, _, parameters = calculate_flops(
        model, kwargs=inputs(model, tokens), print_results=False, output_as_string=False
    )
    return {"parameters": parameters, "flops": flops}


def llm_flops(folder, tokens):
    """Takes hub ids; its own reader of config.json is behind the download, so called directly."""
    from llmflops import estimate
    from llmflops.registry import _map_hf_config

    raw = json.loads((folder / "config.json").read_text("utf-8"))
    found = estimate(_map_hf_config("config", raw), 1, tokens, "bf16", None)
    return {
        "parameters": found["parameters"],
        "flops": found["forward_flops"],
        "kv": found["kv_cache"],
    }


def hf_vram_calc(folder, tokens):
    """The steps of its command with --model_path, before it rounds to GiB."""
    from hf_vram_calc.calculator import ParameterCalculator, VRAMCalculator
    from hf_vram_calc.config import ConfigManager
    from hf_vram_calc.parser import ConfigParser

    config = ConfigParser.load_and_parse_config("config", str(folder))
    gib = VRAMCalculator(ConfigManager()).calculate_kv_cache_memory(config, "bf16", 1, tokens)
    return {
        "parameters": ParameterCalculator.calculate_transformer_params(config),
        "kv": gib * 2**30,
    }


def accelerate(folder, tokens):
    """``accelerate estimate-memory`` takes hub ids: its look-up there is answered for it."""
    del tokens
    from accelerate.commands import estimate

    # What the hub says of a model of transformers without code of its own.
    estimate.verify_on_hub = lambda *_, **__: types.SimpleNamespace(
        library_name="transformers", config={}
    )
    asked = types.SimpleNamespace(
        model_name=str(folder), library_name="transformers", trust_remote_code=False,
        dtypes=["float32"],
    )  # fmt: skip
    return {"parameters": estimate.gather_data(asked)[0][2] / 4}


TOOLS = {
    "truth": (truth, "transformers"),
    "scantling": (scantling, "scantling"),
    "calflops": (calflops, "calflops"),
    "llm-flops": (llm_flops, "llm-flops"),
    "hf-vram-calc": (hf_vram_calc, "hf-vram-calc"),
    "accelerate": (accelerate, "accelerate"),
}


def reason(error, folder):
    text = " ".join(f"{type(error).__name__}: {error}".split()).replace(str(folder.parent), "…")
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH] + "…"


def main():
    tool, *asked = sys.argv[1:]
    count, package = TOOLS[tool]
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    out = sys.stdout
    # The tools print tables of their own.
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        for i, one in enumerate(asked):
            tokens, _, path = one.partition("=")
            folder = Path(path)
            start = time.perf_counter()
            try:
                with contextlib.redirect_stdout(nowhere):
                    found = count(folder, int(tokens))
            except BaseException as error:  # noqa: BLE001 (any failure is the tool's answer)
                found = {"error": reason(error, folder)}
            found["ms"] = (time.perf_counter() - start) * 1e3
            found["version"] = version(package)
            if i:  # the first is the warm-up: imports and tables are not a config's time
                print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    main()
