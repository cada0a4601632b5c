"""Fit the constants of kernels in ``data/constants`` from public tables.

    python benchmarks/fit_kernels.py ../shared/data/measured            prints errors
    python benchmarks/fit_kernels.py ../shared/data/measured --write    writes the files too

Products and routed experts go to gemm.toml, light work to elementwise.toml. What is fitted is the
kernel's own function, so the constants mean what the product does with them.
"""

import pathlib
import sys

from fit_elementwise import elementwise_lines
from fit_experts import expert_lines
from fit_products import gemm_lines

import scantling

CONSTANTS = pathlib.Path(scantling.__file__).parent / "data" / "constants"
HEADS = {
    "gemm": "# What matrix products reach, by precision, and those of routed experts.\n"
            "# Formulas: costs/kernels/gemm.py.",
    "elementwise": "# What norms, activations, lookups and the optimizer reach of the bandwidth.\n"
                   "# Formula: costs/kernels/elementwise.py.",
}  # fmt: skip
WRITTEN = """\
# Written by benchmarks/fit_kernels.py from the open rows of the public tables. Errors are medians
# of absolute relative errors of groups left out; those of unseen chips of chips left out.
"""


def main():
    folder = pathlib.Path(sys.argv[1])
    files = {
        "gemm": [*gemm_lines(folder), *expert_lines(folder)],
        "elementwise": [*elementwise_lines(folder)],
    }
    if "--write" in sys.argv:
        for name, lines in files.items():
            content = "\n".join([HEADS[name], WRITTEN, *lines]).rstrip() + "\n"
            (CONSTANTS / f"{name}.toml").write_text(content, encoding="utf-8")
            print("wrote", name)


if __name__ == "__main__":
    main()
