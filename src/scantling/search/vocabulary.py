"""What a vocabulary takes of a size, what text it saves, and what must be measured to choose it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scantling.laws.vocabulary import best_vocabulary, tokens_per_character
from scantling.search.candidate import Candidate

MOST_TABLE = 0.375
"""Share of the parameters above which a table leaves too few layers (assumed)."""
MISSING = (
    "tokens per word (fertility) of each language of your text: it decides between vocabularies, "
    "and no law has it"
)
ALIKE = (
    "losses of two vocabularies are in nats of other tokens: compare them as bits per byte "
    "(laws.vocabulary.bits_per_byte)"
)
REPORT = (
    "one speed run: 22 layers and a vocabulary of 49,152 were 17.3 % faster than 24 layers, at "
    "equal bits per byte [nanochat-830]"
)


def advised(c: Candidate, options: Iterable[int] = ()) -> dict[str, Any]:
    """The range of vocabularies for a shape, for one language and for several.

    For English text the best one by the law of Tao et al. and its flat valley. Several languages
    need more: from the upper end of that valley to where the table is three eighths of the
    parameters.

    Args:
        c: The choice.
        options: Vocabularies to judge, each as recommended for several languages or not.

    Example:
        >>> from scantling.search import design
        >>> c = design(params="350M", vocab_size=64_000, tied=True, fixed={"d_model": 1024},
        ...            baselines=()).chosen
        >>> found = advised(c, (32_000, 64_000, 128_000, 256_000))
        >>> [o["vocab_size"] for o in found["options"] if o["recommended"]]
        [64000, 128000]
    """
    b, width = c.budget, int(c.spec.d_model)
    best = best_vocabulary(float(c.features.body), width)
    high = int(MOST_TABLE * b.params / width) // 128 * 128
    several = (best.high, max(best.high, high))
    return {
        "english": {"best": best.best, "low": best.low, "high": best.high,
                    "outside_domain": best.outside, "source": "tao2024"},
        "several_languages": {"low": several[0], "high": several[1], "kind": "assumed"},
        "missing": MISSING, "compare_by": ALIKE, "report": REPORT,
        "multiple": "a multiple of 64 or 128, so that no product is padded",
        "options": [
            {"vocab_size": v, "table_share": v * width / b.params,
             "tokens_per_character": tokens_per_character(v),
             "recommended": several[0] <= v <= several[1]}
            for v in options
        ],
    }  # fmt: skip


def advice_lines(found: dict[str, Any]) -> list[str]:
    """The same in words."""
    e, s = found["english"], found["several_languages"]
    lines = [
        f"for English text about {e['best']:,} ({e['low']:,} to {e['high']:,} are alike) [tao2024]",
        f"for several languages {s['low']:,} to {s['high']:,} (assumed); {found['multiple']}",
        f"missing: {found['missing']}", found["compare_by"], found["report"],
    ]  # fmt: skip
    lines += [
        f"{o['vocab_size']:,}: a table is {o['table_share']:.1%} of the parameters; "
        f"{o['tokens_per_character']:.3f} tokens a character of English"
        for o in found["options"]
    ]
    return lines
