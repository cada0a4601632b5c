"""The recipe table of an article, 1 B to 400 B, beside the same labels answered by ``design``.

    python benchmarks/recipe.py            # prints the page
    python benchmarks/recipe.py --write    # writes docs/recipe.md

Two baselines, both counted exactly here:

- the article's rows, shape by shape as printed;
- its generator ``design_architecture``, restored from the text (the audit of claims A147 to A156).
  L = round(32 · 0.7 P^0.2) with P in billions, at least 24, made even; D solves
  12 L D² + 2 V D = P, down to 128; H = D/128; K = H up to 1.5 B, else 8; F = 8/3 D up to 3 B,
  else 3.5 D, to the nearest 256; tied where V D / P > 5 % and P < 3 B.

Its misses are of three kinds: 12 L D² is the body of untied multi-head attention with F = 4 D
ungated, not of what it then builds; H is never matched to K; no label is compared with its sum.
"""

import argparse
import math
import pathlib
from typing import NamedTuple

from scantling.costs.count import parameters
from scantling.search import budget, design
from scantling.search.families import templates
from scantling.spec import vary

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "recipe.md"
ALIGNED = 128
WITHIN = 0.005


class Shape(NamedTuple):
    n_layer: int
    d_model: int
    n_head: int
    n_kv_head: int
    d_ff: int
    tied: bool
    vocab_size: int
    d_head: int = 128


class Row(NamedTuple):
    label: str
    params: float
    article: Shape


ROWS = (
    Row("1B", 1e9, Shape(24, 2048, 16, 16, 5504, tied=True, vocab_size=32_000)),
    Row("3B", 3e9, Shape(28, 3072, 24, 8, 8192, tied=False, vocab_size=64_000)),
    Row("7B", 7e9, Shape(32, 4096, 32, 8, 14_336, tied=False, vocab_size=128_256)),
    Row("13B", 13e9, Shape(40, 5120, 40, 8, 13_824, tied=False, vocab_size=128_000)),
    Row("34B", 34e9, Shape(48, 6656, 52, 8, 17_920, tied=False, vocab_size=128_000)),
    Row("70B", 70e9, Shape(80, 8192, 64, 8, 28_672, tied=False, vocab_size=128_256)),
    Row("200B", 200e9, Shape(96, 12_288, 96, 8, 32_768, tied=False, vocab_size=128_000)),
    Row("400B+", 400e9, Shape(96, 16_384, 128, 16, 43_008, tied=False, vocab_size=128_000)),
)
"""The article's table (claims A147 to A154); its 400 B row has 96 or 128 layers."""

VOCABULARY = 128_000
"""What the generator is run with, as in the audit."""


def generated(params, vocab_size=VOCABULARY):
    """The article's ``design_architecture``."""
    billions = params / 1e9
    n_layer = max(24, round(32 * 0.7 * billions**0.2))
    n_layer -= n_layer % 2
    a, b = 12 * n_layer, 2 * vocab_size
    width = (math.sqrt(b * b + 4 * a * params) - b) / (2 * a)
    d_model = int(width // 128 * 128)
    n_head = d_model // 128
    ratio = 8 / 3 if billions <= 3 else 3.5
    tied = vocab_size * d_model / params > 0.05 and billions < 3
    return Shape(n_layer, d_model, n_head, n_head if billions <= 1.5 else 8,
                 round(d_model * ratio / 256) * 256, tied, vocab_size)  # fmt: skip


def total(shape):
    """Its parameters, by the operators: norms included, tied tables once.

    Queries that no whole group shares have no spec, so the keys and values are counted as they
    would be stored: K heads, whatever H.
    """
    b = budget(params=1e9, tied=shape.tied, vocab_size=shape.vocab_size)
    spec, _ = next(templates(b))
    named = {k: v for k, v in shape._asdict().items() if k not in {"tied", "vocab_size"}}
    return int(parameters(vary(spec, **named)).total)


def ours(row):
    """What ``design`` chooses for a label with the row's vocabulary."""
    return design(params=row.params, vocab_size=row.article.vocab_size, baselines=()).chosen


def legal(shape):
    return shape.n_head % shape.n_kv_head == 0


def aligned(c):
    d = c.dims()
    return d["d_model"] % ALIGNED == 0 and d["d_ff"] % ALIGNED == 0


def miss(count, params):
    return count / params - 1


def page():
    lines = [
        "# The recipe table, corrected", "",
        "An article prints one shape a size, 1 B to 400 B, and code that makes them.",
        "Both are counted here exactly, beside what `scantling design --params LABEL` chooses.",
        "The page is written by `python benchmarks/recipe.py --write`.", "",
        "## The table", "",
        "| label | V | the article's | counts | off by | H mod K | ours | counts | off by | H/K |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for row in ROWS:
        a, c = row.article, ours(row)
        d, mine = c.dims(), int(c.counted.total)
        lines.append(
            f"| {row.label} | {a.vocab_size:,} | {a.n_layer} × {a.d_model}, H/K {a.n_head}/"
            f"{a.n_kv_head}, F {a.d_ff:,} | {total(a) / 1e9:.3f} B | "
            f"{miss(total(a), row.params):+.1%} | {_remainder(a)} | "
            f"{d['n_layer']} × {d['d_model']}, H/K {d['n_head']}/{d['n_kv_head']} × {d['d_head']}, "
            f"F {d['d_ff']:,}{', tied' if c.spec.tied else ''} | {mine / 1e9:.3f} B | "
            f"{miss(mine, row.params):+.2%} | {d['n_head'] // d['n_kv_head']} |"
        )
    lines += [
        "",
        "The article's 7 B is Llama 3 8B; its 34 B, 200 B and 400 B lack a quarter to a third.",
        "52 query heads cannot share 8 KV heads: no class builds that shape.", "",
        "## The generator", "",
        f"`design_architecture` as restored in `benchmarks/recipe.py`, V = {VOCABULARY:,}.", "",
        "| label | shape | F | tied | counts | off by | H mod K |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for billions in (0.5, 1, 1.5, 3, 7, 13, 34, 70, 200, 400, 1000):
        s = generated(billions * 1e9)
        lines.append(
            f"| {billions:g}B | {s.n_layer} × {s.d_model}, H/K {s.n_head}/{s.n_kv_head} | "
            f"{s.d_ff:,} | {'yes' if s.tied else 'no'} | {total(s) / 1e9:.3f} B | "
            f"{miss(total(s), billions * 1e9):+.1%} | {_remainder(s)} |"
        )
    lines += [
        "",
        "It solves 12 L D² + 2 V D = P and then builds something else: tied tables, grouped heads,",
        "a gated feed-forward of 8/3 or 3.5 widths.",
        "Where the last column is not 0 the heads do not split into whole groups.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _remainder(shape):
    left = shape.n_head % shape.n_kv_head
    return f"**{left}**" if left else "0"


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--write", action="store_true", help="write docs/recipe.md")
    found = page()
    if options.parse_args().write:
        PAGE.write_text(found, encoding="utf-8")
    else:
        print(found)


if __name__ == "__main__":
    main()
