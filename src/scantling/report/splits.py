"""What a split of layers between an encoder and a decoder costs; no law prices its loss."""

from __future__ import annotations

from msgspec.structs import replace

from scantling.report.shape_cells import layers_cell
from scantling.search import Budget, Candidate, chosen
from scantling.search.axes import DEEP_ENCODER
from scantling.search.kinds import ENCODER_RATIOS
from scantling.units import bytes_text, seconds_text


def price_splits(b: Budget) -> list[Candidate]:
    """The choice of each split, even to deep, with the other axes free to make room for it.

    Args:
        b: The budget of encoder-decoders; what it says of the split is left aside.

    Example:
        >>> from scantling.search.budget import budget
        >>> b = budget(params="60M", kind="encoder-decoder", vocab_size=32128)
        >>> even, *_, deep = price_splits(b)
        >>> float(deep.decode.value_s) < float(even.decode.value_s)
        True
    """
    listed = {name: found for name, found in b.listed.items() if name != "encoder_ratio"}
    found = (
        chosen(replace(b, listed=listed, fixed={**b.fixed, "encoder_ratio": ratio}))
        for ratio in ENCODER_RATIOS
    )
    return [c for c in found if c is not None]


def split_lines(rows: list[Candidate]) -> list[str]:
    """The splits as a table, with what was published of them."""
    head = ("layers × width", "days", "KV/token", "ms/token", "first token", "shape")
    cells = [head]
    for c in rows:
        first = seconds_text(float(c.costs.ttft_s))
        cells.append((layers_cell(c.spec), f"{c.days:.3g}", bytes_text(c.kv_bytes_per_token),
                      f"{float(c.decode.value_s) * 1e3:.2f}", first, c.name))  # fmt: skip
    wide = [max(len(row[i]) for row in cells) for i in range(len(head))]
    told = ["What a split of the layers costs at this size; no law prices its loss:"]
    told += ["  ".join([*(row[i].rjust(wide[i]) for i in range(5)), row[5]]) for row in cells]
    told.append(f"{DEEP_ENCODER} [kasai2020]; --fix encoder_ratio=1,2,12 searches several")
    return told
