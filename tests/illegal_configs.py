"""The made-up configs of ``data/rule_examples.toml`` by the names that tests use."""

from scantling.rules.examples import bases, changed, examples

HARMS = examples()
"""Every harm."""
LLAMA, MOE, GPT2, HYBRID, MAMBA, GEMMA3 = (
    bases()[name] for name in ("llama", "moe", "gpt2", "hybrid", "mamba", "gemma3")
)

__all__ = ["GEMMA3", "GPT2", "HARMS", "HYBRID", "LLAMA", "MAMBA", "MOE", "changed"]
