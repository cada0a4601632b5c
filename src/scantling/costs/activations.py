"""What a forward pass leaves for the backward pass: a fold over one rank's operators.

Autograd keeps, of each operator, what its gradient needs:

    product y = x Wᵀ         x (once, where several products read the same)
    norm                     its input; written out in bf16, an fp32 copy of it (RMS) instead
    activation               its input: gate and up where gated; unfused, the activated gate too,
                             and what its formula makes on the way (``KEPT_BY``)
    attention, flash         q, k, v, the output, and the log-sum-exp in fp32, 4 a s
    attention, unfused       q, k, v, softmax 2 a s²; with dropout its mask a s² and output 2 a s²;
                             written out, 4 a s² more in fp32, 2 a s² where scores are capped, and
                             keys repeated for all heads
    experts, unfused         what each made, which its weight multiplies; of a router that scores
                             by sigmoids, an fp32 copy of its input
    dropout                  a mask of one byte an element, one for each branch of a block
    residual sum, lookup     nothing

With 16-bit numbers, a GPT layer of width h, dropout and unfused attention that is, per token,

    norms 4h · qkv input 2h · q, k 4h · v 2h · output 2h · up input 2h · activation input 8h ·
    down input 8h · two masks 2h · softmax, mask, dropout 5 a s       = 34 h + 5 a s

(Korthikanti et al. 2022, equation 1). What stands in the residual stream (norms, the inputs of qkv
and up, the masks: 10 h) is divided by TP only with sequence parallelism, the rest always:
s b h (10 + 24/t + 5 a s / (h t)), equations 2 and 4. Statistics of norms (4 to 8 bytes a token) are
left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from scantling.arith import Num, maximum, minimum, product
from scantling.costs.adapters import adapts
from scantling.costs.ranks import Placed
from scantling.costs.remember import remembered
from scantling.spec.plan import Adapter, Plan, Prompt, Recipe

STREAM_NORMS = ("pre_norm", "final_norm")
"""Norms whose output several products read."""
GATES = frozenset({"gate", "experts_gate", "shared_gate"})


KEPT_BY = {
    "relu": 0, "sigmoid": 0, "tanh": 0, "linear": 0, "gelu_10": 2, "quick_gelu": 2,
    "gelu_python": 3, "gelu_new": 4, "gelu_accurate": 4, "gelu_python_tanh": 4, "gelu_fast": 7,
}  # fmt: skip
"""Tensors of its width that an unfused activation keeps, besides its output, which the next product
keeps; one, its input, where it is not listed. ReLU, sigmoid and tanh need no more than the output.

    gelu_new    0.5 x · (1 + tanh(c (x + 0.044715 x³)))    x, 0.5 x, tanh, 1 + tanh
    quick_gelu  x · sigmoid(1.702 x)                       x, sigmoid
"""
ONE_KERNEL = frozenset({"relu", "sigmoid", "tanh", "linear"})
"""Those of ``KEPT_BY`` that are no formula but an operation of their own."""


class Kept(Struct, frozen=True):
    """Bytes that one micro-batch leaves on one rank."""

    layers: Num
    """By all layers of the stage, with the plan's recompute."""
    outside: Num
    """By what is not in a layer: the last norm and the input of the head."""
    one_layer: Num
    """By the largest layer without recompute: what it holds while it is computed again."""
    temporary: Num
    """Gradients that are alive at once inside a layer's backward pass, at most."""

    @property
    def total(self) -> Num:
        """All that waits for the backward pass."""
        return self.layers + self.outside

    def times(self, n: int) -> Kept:
        """What so many sequences leave."""
        return Kept(*(product(getattr(self, name), n) for name in self.__struct_fields__))


@remembered(
    lambda ops, width, plan, recipe, rows: (
        id(ops), width, plan.tp, plan.cp, plan.expert_tp, plan.sequence_parallel, plan.ulysses,
        plan.recompute, plan.recompute_layers, recipe, rows,
    )
)  # fmt: skip
def kept(ops: tuple[Placed, ...], width: Any, plan: Plan, recipe: Recipe, rows: Any) -> Kept:
    """What one micro-batch leaves on a rank.

    Args:
        ops: The forward operators of the rank.
        width: D of the residual stream.
        plan: How the model is split.
        recipe: Its numbers and software.
        rows: Tokens of the micro-batch on the rank, before sequence parallelism.

    Returns:
        Bytes. Scans of recurrent mixers are counted as what they read and write once.
    """
    stream = rows * width * item(recipe) / stream_share(plan)
    own: dict[str, Any] = {}
    cheap: dict[str, Any] = {}
    occurs: dict[str, Any] = {}
    grads: dict[str, Any] = {}
    fold = _Fold(plan, recipe)
    for placed in ops:
        left, grad = fold.step(placed)
        layer = placed.layer
        own[layer] = own.get(layer, 0) + left
        cheap[layer] = cheap.get(layer, 0) + fold.saved
        grads[layer] = maximum(grads.get(layer, 0), grad)
        if layer not in occurs:
            occurs[layer] = placed.op.times
    layers: Any = 0
    largest: Any = 0
    temporary: Any = 0
    spare: Any = plan.recompute_layers
    idle: Any = _idle_layers(recipe)
    for layer, left in own.items():
        if not layer:
            continue
        there = minimum(occurs[layer], 1)  # a column has kinds that some stages lack
        largest = maximum(largest, there * left)
        temporary = maximum(temporary, there * (grads[layer] + stream))
        n = occurs[layer] - minimum(idle, occurs[layer])
        idle = idle - (occurs[layer] - n)
        again = n if spare is None else minimum(spare, n)
        spare = None if spare is None else spare - again
        if plan.recompute == "full":
            layers = layers + product(again, stream) + product(n - again, left)
        elif plan.recompute == "products":
            layers = layers + product(again, stream + cheap[layer]) + product(n - again, left)
        else:
            layers = layers + product(n, left)
    return Kept(layers=layers, outside=own.get("", 0), one_layer=largest, temporary=temporary)


def _idle_layers(recipe: Recipe) -> int:
    """Layers before the first trained parameter: no gradient passes them, so they keep nothing."""
    adapter = recipe.adapter
    prompts_alone = isinstance(adapter, Prompt) and not adapter.scales
    return adapter.first_layer if prompts_alone else 0  # type: ignore[union-attr]


def item(recipe: Recipe) -> float:
    """Bytes of an activation: those of the weights' forward dtype, 16 bits beneath it."""
    return 4.0 if recipe.dtype == "fp32" else 2.0


def stream_share(plan: Plan) -> int:
    """Ranks that share the residual stream."""
    return plan.tp if plan.sequence_parallel else 1


class _Fold:
    """Walks the operators in order, knowing what is kept already."""

    def __init__(self, plan: Plan, recipe: Recipe) -> None:
        self.plan, self.recipe = plan, recipe
        self.b = item(recipe)
        self.frozen = recipe.adapter is not None
        self.flash = recipe.attention != "unfused"
        self.stream_kept = False
        self.norm_kept = False
        self.gated = False
        self.n_product = 0
        self.saved: Any = 0
        self.layer = ""
        self.branches: set[str] = set()

    def step(self, placed: Placed) -> tuple[Any, Any]:
        """Bytes one occurrence of an operator keeps, and those of its gradients beside them.

        ``saved`` is then what is kept of it where all but attention and every other product is
        computed again.
        """
        op = placed.op
        self.saved = 0
        if placed.layer != self.layer:
            self.layer, self.n_product = placed.layer, 0
            self.stream_kept = self.norm_kept = False
            self.branches = set()
        leaf = op.name.rpartition(".")[2]
        if op.kind == "norm":
            return self._norm(placed, leaf), 0
        if op.kind == "matmul":
            self.branches.add(placed.module)
            return self._product(placed, leaf)
        if op.kind == "attention":
            return self._attention(placed), 0
        if op.kind == "scan":
            return op.m * op.elements * self.b, 0
        if leaf.endswith("activation"):
            return self._activation(placed)
        if leaf == "residual":
            self.stream_kept = self.norm_kept = False
            masks, self.branches = max(1, len(self.branches)), set()
            return op.m * op.n * masks if self.recipe.dropout else 0, 0
        return 0, 0

    def _norm(self, placed: Placed, leaf: str) -> Any:
        op = placed.op
        plain = op.form == "layer"
        if leaf.endswith(STREAM_NORMS):
            self.stream_kept = False
        trained, wide = not self.frozen or self._scales(), self.recipe.wide_norms
        scaled = (self.b if wide == "none" else 4) if trained and op.tensors else 0
        if plain and wide == "all" and not self.recipe.fused:
            return op.m * op.n * (8 + scaled)  # its input and that without the mean
        if self.recipe.fused or plain:
            if leaf.endswith("pre_norm") and self.norm_kept:
                return 0  # a second norm of the same stream reads the same tensor
            self.norm_kept = self.norm_kept or leaf.endswith("pre_norm")
            return op.m * op.n * self.b
        return op.m * op.n * (4 + scaled)

    def _scales(self) -> bool:
        return isinstance(self.recipe.adapter, Prompt) and self.recipe.adapter.scales

    def _product(self, placed: Placed, leaf: str) -> tuple[Any, Any]:
        op = placed.op
        each = op.repeat / maximum(op.times, 1)
        made = op.m * op.n * each * self.b
        self._count(placed, leaf)
        self.gated = any(t.name.rpartition(".")[2] in GATES for t in op.tensors)
        read = op.m * op.k * each * self.b
        left: Any = 0
        grad: Any = 0
        if placed.reads_stream:
            if not self.stream_kept and self._trains(placed):
                share = stream_share(self.plan) if placed.split == "out" else 1
                left = left + read / share
                self.stream_kept = True
        elif leaf == "o" and self.flash:
            # The output, which flash attention keeps itself; before an exchange and after it.
            left = left + read * (2 if self.plan.ulysses and self.plan.cp > 1 else 1)
        elif self._trains(placed):
            left = left + read
        left = left + self._beside(placed, read)
        if leaf in {"qkv", "kv", "q", "q_up"}:  # what attention reads
            left = left + made + self._sliced(placed)
            grad = made
        if op.part == "router":
            left = left + op.m * op.n * 4
            if not self.recipe.fused and op.form == "sigmoid":
                left = left + op.m * op.k * 4
        if leaf == "experts_down" and not self.recipe.fused:
            left = left + made
        if isinstance(self.recipe.adapter, Prompt):
            left = left + self._prompted(placed, leaf)
        return left, grad

    def _prompted(self, placed: Placed, leaf: str) -> Any:
        """The output of a product that is scaled, and what attention made of the prompts."""
        adapter = self.recipe.adapter
        assert isinstance(adapter, Prompt)
        op = placed.op
        scaled = op.m * op.n * self.b if adapter.scales else 0
        return scaled + (op.m * op.k * self.b if leaf == "o" else 0)

    def _trains(self, placed: Placed) -> bool:
        """Whether a gradient of a product's weight, or of an adapter on it, is wanted."""
        adapter = self.recipe.adapter
        if adapter is None or adapter.packed:  # packed products keep their input all the same
            return True
        if not isinstance(adapter, Adapter) or adapter.dropout:  # dropout's copy is kept instead
            return False
        return any(self._adapted(placed, adapter))

    @staticmethod
    def _adapted(placed: Placed, adapter: Adapter) -> Iterator[Any]:
        """Outputs of the adapters beside a product; stacked experts have none."""
        for t in placed.op.tensors:
            if t.experts is None and adapts(placed, t, adapter):
                yield t.shape[0]

    def _beside(self, placed: Placed, read: Any) -> Any:
        """What adapters beside a product keep: their outputs, and of dropout a copy and a mask."""
        adapter = self.recipe.adapter
        if not isinstance(adapter, Adapter):
            return 0
        outs = list(self._adapted(placed, adapter))
        if not outs:
            return 0
        made: Any = sum(outs, start=0)
        dropped = read + read / self.b if adapter.dropout else 0
        return placed.op.m * made * self.b + dropped

    def _sliced(self, placed: Placed) -> Any:
        """A value that is a slice of one product's output keeps all of it alive.

        Queries and keys are new tensors once they are rotated, so their part is held twice.
        """
        op = placed.op
        values = [t.shape[0] for t in op.tensors if t.name.endswith(".v") and len(t.shape) == 2]
        if not self.recipe.fused_qkv or not values:
            return 0
        return op.m * (op.n - values[0]) * self.b

    def _count(self, placed: Placed, leaf: str) -> None:
        """Every other product is kept; one that only feeds a sum is needed by no gradient."""
        for t in placed.op.tensors:
            if len(t.shape) != 2:
                continue
            self.n_product += 1
            dead = self.recipe.fused and placed.split == "in"
            if self.n_product % 2 and not dead:
                self.saved = self.saved + placed.op.m * t.shape[0] * self.b
        if leaf == "o":
            self.saved = self.saved + placed.op.m * placed.op.k * self.b

    def _attention(self, placed: Placed) -> Any:
        op = placed.op
        heads = op.repeat / maximum(op.times, 1)
        left: Any = 0
        if op.cache is not None and op.cache.expanded is not None:  # keys, values of the latent
            left = left + product(op.m, op.cache.expanded, self.plan.micro_batch) * self.b
        if self.flash:
            self.saved = product(op.m, heads) * 4
            return left + self.saved
        if self.plan.recompute == "selective":
            return left
        if not self.recipe.fused and op.cache is not None and op.cache.expanded is None:
            whole, shared = product(op.m, heads, op.k), product(op.m, op.cache.per_token)
            left = left + (whole - shared * self.plan.micro_batch) * self.b  # keys are repeated
        pairs = product(op.m, op.n, heads)
        upcast: Any = 0
        if not self.recipe.fused:
            wide = 4 - (self.b if self.recipe.dropout else 0)  # then its 16-bit copy is not read
            upcast = (wide if self.recipe.wide_scores else 0) + (
                self.b if "softcap" in op.form.split() else 0
            )
        return left + pairs * (self.b + upcast + (1 + self.b if self.recipe.dropout else 0))

    def _activation(self, placed: Placed) -> tuple[Any, Any]:
        op = placed.op
        each = op.m * op.n * self.b
        inputs = 2 * each if self.gated else each
        if self.recipe.fused:
            return inputs, each if self.recipe.in_place else inputs
        own = each * self._kept_by(op.form)
        if self.gated:
            return own + 2 * each, 3 * each
        return own, each if self.recipe.in_place else inputs

    def _kept_by(self, activation: str) -> int:
        """Tensors an unfused activation keeps besides its output."""
        if activation not in ONE_KERNEL:
            return KEPT_BY.get(activation, 1) if self.recipe.composed else 1
        # The output is kept by the next product, or where that is frozen by the activation itself.
        keeps = not self.frozen or self.gated or self.recipe.adapter.packed  # type: ignore[union-attr]
        return 0 if keeps or activation == "linear" else 1
