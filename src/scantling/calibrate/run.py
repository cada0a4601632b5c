"""The calls that are timed, in torch: each what a plain eager model does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scantling.calibrate.cases import Case
from scantling.calibrate.timing import Run

RATE = 1e-4
"""Of the optimizer: any."""


class Builder:
    """Makes the call of a case on a device.

    Args:
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device = torch, device
        self.models: dict[tuple[Any, ...], Any] = {}

    def __call__(self, case: Case) -> Run:
        """The call, with its inputs made."""
        made: dict[str, Callable[[Case], Run]] = {
            "gemm": self.gemm, "attention": self.attention, "unfused": self.unfused,
            "copy": self.copy, "norm": self.norm,
            "activation": self.activation, "add": self.add, "loss": self.loss,
            "optimizer": self.optimizer, "launch": self.launch, "forward": self.forward,
            "step": self.step,
        }  # fmt: skip
        return made[case.kind](case)

    def numbers(self, case: Case, *shape: int, grad: bool = False) -> Any:
        """Random numbers: an accelerator's clock depends on what it multiplies."""
        made = self.torch.empty(*shape, dtype=self.dtype(case), device=self.device).uniform_(-1, 1)
        return made.requires_grad_(grad)

    def dtype(self, case: Case) -> Any:
        """What numbers, as torch has them."""
        return {"fp32": self.torch.float32, "bf16": self.torch.bfloat16}[case.dtype]

    def gemm(self, case: Case) -> Run:
        """A product, its sides lying in memory as in the pass that has it."""
        m, n, k = case.shape
        left = self.numbers(case, k, m).t() if case.form == "grad_weight" else None
        a = self.numbers(case, m, k) if left is None else left
        b = self.numbers(case, n, k).t() if case.form == "forward" else self.numbers(case, k, n)
        return lambda: self.torch.mm(a, b)

    def attention(self, case: Case) -> Run:
        """Causal attention, or its backward pass alone."""
        batch, heads, kv_heads, length, d_head = case.shape
        grad = case.backward
        q = self.numbers(case, batch, heads, length, d_head, grad=grad)
        k, v = (self.numbers(case, batch, kv_heads, length, d_head, grad=grad) for _ in "kv")
        attend = self.torch.nn.functional.scaled_dot_product_attention

        def run() -> Any:
            return attend(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)

        return self._backward(run, (q, k, v)) if grad else run

    def unfused(self, case: Case) -> Run:
        """The same by hand: scores, mask, softmax, weighted values."""
        batch, heads, kv_heads, length, d_head = case.shape
        grad, torch = case.backward, self.torch
        q = self.numbers(case, batch, heads, length, d_head, grad=grad)
        k, v = (self.numbers(case, batch, kv_heads, length, d_head, grad=grad) for _ in "kv")
        hidden = torch.ones(length, length, dtype=torch.bool, device=self.device).triu(1)

        def run() -> Any:
            keys, values = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
            scores = (q @ keys.mT * d_head**-0.5).masked_fill(hidden, -torch.inf)
            return scores.softmax(-1) @ values

        return self._backward(run, (q, k, v)) if grad else run

    def _backward(self, run: Run, inputs: tuple[Any, ...]) -> Run:
        """The backward pass of a call that has run once."""
        out: Any = run()
        gradient = self.torch.ones_like(out)
        grad = self.torch.autograd.grad
        return lambda: grad(out, inputs, gradient, retain_graph=True)

    def copy(self, case: Case) -> Run:
        """A copy into memory that is there."""
        x = self.numbers(case, *case.shape)
        y = self.torch.empty_like(x)
        return lambda: y.copy_(x)

    def norm(self, case: Case) -> Run:
        """RMSNorm or LayerNorm with a scale."""
        rows, width = case.shape
        x = self.numbers(case, rows, width, grad=case.backward)
        scale = self.numbers(case, width, grad=case.backward)
        functional = self.torch.nn.functional
        norm = functional.rms_norm if case.form == "rms" else functional.layer_norm

        def run() -> Any:
            return norm(x, (width,), scale)

        return self._backward(run, (x, scale)) if case.backward else run

    def activation(self, case: Case) -> Run:
        """SiLU times a product beside it, or GELU."""
        x, y = (self.numbers(case, *case.shape, grad=case.backward) for _ in "xy")
        functional = self.torch.nn.functional
        if case.form == "gated":
            run: Run = lambda: functional.silu(x) * y  # noqa: E731 - one of two
        else:
            run = lambda: functional.gelu(x)  # noqa: E731 - the other
        inputs = (x, y) if case.form == "gated" else (x,)
        return self._backward(run, inputs) if case.backward else run

    def add(self, case: Case) -> Run:
        """A residual."""
        x, y = (self.numbers(case, *case.shape) for _ in "xy")
        return lambda: x + y

    def loss(self, case: Case) -> Run:
        """Cross entropy over a vocabulary, and the gradient of the logits."""
        rows, vocab = case.shape
        x = self.numbers(case, rows, vocab, grad=True)
        wanted = self.torch.randint(vocab, (rows,), device=self.device)
        entropy, grad = self.torch.nn.functional.cross_entropy, self.torch.autograd.grad
        return lambda: grad(entropy(x, wanted), x)

    def optimizer(self, case: Case) -> Run:
        """A step of AdamW over some tensors."""
        total, n = case.shape
        weights = [self.numbers(case, total // n, grad=True) for _ in range(n)]
        for w in weights:
            w.grad = self.torch.full_like(w, 1e-3)
        return self.torch.optim.AdamW(weights, lr=RATE).step

    def launch(self, case: Case) -> Run:
        """The smallest kernel."""
        x = self.numbers(case, 1)
        return lambda: x + x

    def _model(self, case: Case) -> tuple[Any, Any]:
        """A whole model and tokens for it; forward and step share them."""
        from scantling.calibrate.whole import Whole

        key = (case.shape, case.form, case.dtype)
        if key not in self.models:
            vocab, batch, tokens = case.shape[-3:]
            model = Whole(case).to(self.device, self.dtype(case))
            numbers = self.torch.randint(vocab, (batch, tokens), device=self.device)
            self.models[key] = (model, numbers)
        found: tuple[Any, Any] = self.models[key]
        return found

    def forward(self, case: Case) -> Run:
        """A forward pass that keeps nothing."""
        model, tokens = self._model(case)

        def run() -> None:
            with self.torch.no_grad():
                model(tokens)

        return run

    def step(self, case: Case) -> Run:
        """Forward, loss, backward and AdamW."""
        model, tokens = self._model(case)
        optimizer = self.torch.optim.AdamW(model.parameters(), lr=RATE)
        entropy = self.torch.nn.functional.cross_entropy

        def run() -> None:
            logits = model(tokens)
            loss: Any = entropy(logits.flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return run
