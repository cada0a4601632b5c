"""The place a module stands in, and the few lines from which all operators are written."""

from __future__ import annotations

from msgspec import Struct

from scantling.arith import Dim, Num
from scantling.ops.op import Op, Part, Tensor
from scantling.spec import Norm
from scantling.spec.workload import Phase


class Site(Struct, frozen=True):
    """Where a module stands: its name, the stream's width, how often it occurs, what flows."""

    path: str
    width: Dim
    """D of the residual stream."""
    times: Dim
    """Occurrences in the model."""
    copies: Dim
    """Distinct weight sets among them."""
    phase: Phase
    batch: int
    queries: Num
    """New tokens of one sequence."""
    keys: Num
    """Tokens of one sequence that attention can look at."""
    source: Num
    """Encoder tokens of one sequence, for cross attention."""
    permille: Dim = 1000
    """Share of the tokens that reach the module."""
    vocab: Dim = 0
    """Rows of the token table, for what is looked up by token."""

    @property
    def rows(self) -> Num:
        """Tokens of the whole batch that pass through."""
        return self.batch * self.queries

    def tensor(self, name: str, part: Part, *shape: Dim, **more: Dim | bool | None) -> Tensor:
        """A weight of this module."""
        return Tensor(
            name=f"{self.path}.{name}", part=part, shape=shape, copies=self.copies,
            **more,  # type: ignore[arg-type]
        )  # fmt: skip

    def matmul(
        self,
        name: str,
        part: Part,
        outs: tuple[tuple[str, Dim], ...],
        k: Dim,
        *,
        bias: bool | tuple[str, ...] = False,
        rows: Num | None = None,
    ) -> Op:
        """One product with one or several matrices side by side (a fused q, k, v).

        ``bias`` is for all of them, or names those that have one.
        """
        weights = [self.tensor(out, part, n, k) for out, n in outs]
        biased = bias if isinstance(bias, tuple) else [out for out, _ in outs if bias]
        weights += [self.tensor(f"{out}_bias", part, n) for out, n in outs if out in biased]
        n = outs[0][1]
        for _, more in outs[1:]:
            n = n + more
        return Op(
            name=f"{self.path}.{name}", kind="matmul", part=part, m=self.rows if rows is None
            else rows, n=n, k=k, repeat=self.times, times=self.times, tensors=tuple(weights),
            elements=n + k,
        )  # fmt: skip

    def norm(self, name: str, norm: Norm, width: Dim, part: Part = "norm", heads: Num = 1) -> Op:
        """A normalisation of ``heads`` vectors of a width for each token."""
        weights = []
        if norm.scale:
            weights.append(self.tensor(f"{name}_scale", part, width))
        if norm.bias:
            weights.append(self.tensor(f"{name}_bias", part, width))
        return self.light("norm", name, part, width * heads, tuple(weights), norm.kind)

    def light(
        self, kind: str, name: str, part: Part, width: Num, tensors: tuple[Tensor, ...] = (),
        form: str = "",
    ) -> Op:  # fmt: skip
        """Work without a product: reads and writes ``width`` elements a token."""
        return Op(
            name=f"{self.path}.{name}", kind=kind, part=part, m=self.rows, n=width, k=1,  # type: ignore[arg-type]
            repeat=self.times, times=self.times, tensors=tensors, elements=2 * width, form=form,
        )  # fmt: skip
