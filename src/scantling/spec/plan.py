"""How a training step is split over chips, and in what numbers it is kept."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Recompute = Literal["none", "selective", "products", "full"]
Optimizer = Literal["adamw", "adamw8bit", "adafactor", "muon", "sgd", "none"]
Attention = Literal["unfused", "flash", "flash2", "flash3"]


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the work of one step is split.

    The chips are tp × cp × pp × dp. Ranks of one tensor group lie next to each other, then those
    of context, then data, then pipeline. Expert groups are made of the tensor-parallel groups of
    the data and context ranks: ep divides dp × cp (× tp where experts are not split by tensor).

    Args:
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        dp: Data-parallel replicas.
        cp: Context-parallel degree: each rank holds context / cp tokens of a sequence.
        ulysses: Whether context is split by an all-to-all between tokens and heads, not by a ring.
        ep: Expert-parallel degree.
        expert_tp: Tensor-parallel degree of the experts; None is that of the rest.
        virtual: Chunks of layers a stage holds (interleaved 1F1B); 1 is plain 1F1B.
        zero: What the data-parallel ranks share: 0 nothing, 1 optimizer states, 2 gradients too,
            3 weights too (FSDP).
        shard: Ranks among which ZeRO shares; None is all dp × cp (hybrid sharding: fewer).
        sequence_parallel: Whether norms and residuals are split over the tensor group as well.
        micro_batch: Sequences of one forward pass on one replica.
        n_micro_batch: Micro-batches of a step: micro_batch × n_micro_batch × dp is the batch.
        recompute: What is computed again in the backward pass: nothing, the inside of attention
            (``selective``), all but attention and every other product (``products``, torchtitan's
            selective mode by operator), or whole layers (``full``).
        recompute_layers: With ``full``: layers of a stage it is done for; None is all.
        vocab_multiple: The vocabulary is padded to a multiple of this × tp; Megatron takes 128.

    Example:
        >>> Plan(tp=8, pp=4, dp=2, n_micro_batch=16).n_gpu
        64
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ulysses: bool = False
    ep: int = 1
    expert_tp: int | None = None
    virtual: int = 1
    zero: Literal[0, 1, 2, 3] = 1
    shard: int | None = None
    sequence_parallel: bool = True
    micro_batch: int = 1
    n_micro_batch: int = 1
    recompute: Recompute = "none"
    recompute_layers: int | None = None
    vocab_multiple: int = 1

    @property
    def n_gpu(self) -> int:
        """Chips in all."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.micro_batch * self.n_micro_batch * self.dp

    @property
    def zero_ranks(self) -> int:
        """Ranks among which ZeRO shares."""
        return self.dp * self.cp if self.shard is None else self.shard


class Adapter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Low-rank adapters on frozen weights (LoRA); with 4-bit weights, QLoRA.

    Args:
        rank: Width r of the adapters: a matrix of out × in gets r (out + in) parameters.
        targets: Names of the matrices, as ``q_proj``; empty is every linear one in the layers.
        weights: Dtype of the frozen weights: ``bf16``, ``int8``, ``nf4`` (blocks of 64 with an
            fp32 scale), ``nf4-dq`` (scales quantised too), ``int4-g128``.
        dropout: Whether the adapters' input passes a dropout, which keeps a copy and a mask.
        packs_head: Whether the output matrix is kept in ``weights`` as well.
    """

    rank: int
    targets: tuple[str, ...] = ()
    weights: str = "bf16"
    dropout: bool = False
    packs_head: bool = False

    @property
    def packed(self) -> bool:
        """Whether the frozen weights must be unpacked before a product."""
        return self.weights not in SIXTEEN_OR_MORE


class Prompt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Learned prompts that attention reads beside the keys, on frozen weights (LLaMA-Adapter).

    Args:
        n_prompt: Rows of a prompt, one for each adapted layer.
        first_layer: The layers before it have none.
        scales: Whether every product also gets a scale and a bias, and norms are trained
            (version 2).
        weights: As of ``Adapter``.
        packs_head: As of ``Adapter``.
    """

    n_prompt: int = 10
    first_layer: int = 2
    scales: bool = False
    weights: str = "bf16"
    packs_head: bool = False

    @property
    def packed(self) -> bool:
        """Whether the frozen weights must be unpacked before a product."""
        return self.weights not in SIXTEEN_OR_MORE


SIXTEEN_OR_MORE = frozenset({"bf16", "fp16", "fp32"})


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In what numbers and by what software a step is run: facts, not fits.

    Args:
        dtype: Of the products: ``bf16``, ``fp16``, ``fp32``, ``fp8`` (a scale a tensor),
            ``fp8-block`` (a scale a block of 128), ``mxfp8``, ``nvfp4``.
        weights: Dtype the weights are kept in for the forward pass.
        gradients: Dtype they are accumulated in.
        master: Dtype of a second copy of the weights that the optimizer changes; None is none.
        moments: Dtype of the optimizer's moments.
        optimizer: ``adamw`` and its like; ``none`` trains nothing (or only the adapter).
        reduce: Dtype gradients travel in.
        attention: Its kernel.
        fused: Whether elementwise work is fused (compiled, or hand-written kernels).
        composed: Whether unfused software writes activations such as ``gelu_new`` out in sums and
            products (transformers), or has one kernel for them (LitGPT).
        wide_scores: Whether unfused attention takes its softmax in fp32; the classes of GPT-2 and
            Falcon do not.
        wide_norms: Which unfused norms are scaled in fp32 before they are written in 16 bits, not
            after: RMS norms (classes of Gemma and OLMo 2), or layer norms written out in fp32 as
            well (Cohere).
        in_place: Whether the kernel of the activation writes its gradient over its input.
        fused_qkv: Whether one product makes queries, keys and values, of which the value stays a
            slice.
        overlap: Whether communication runs beside compute where the schedule allows it.
        dropout: Whether dropout masks are kept.
        logits: Dtype of the logits that the loss reads.
        chunked_loss: Whether the loss never holds all logits at once.
        fused_loss: Whether one kernel makes the loss and, in place, its gradient.
        foreach: Whether the optimizer works on lists of tensors, which takes one more copy of the
            weights at the step.
        sized_experts: Whether kernels read how many tokens each expert gets, and sort, quantise
            and activate them themselves, so that the host need not wait for it.
        offload: Whether optimizer states live on the host.
        offload_weights: Whether shared weights live there too and come when they are gathered.
        bucket_elements: Elements of weights and gradients that software keeps in flight in buckets
            of its own, at 16 bits; see ``validate/memory.py`` for DeepSpeed's defaults.
        plain: Whether all is written out, operation by operation, as in the lab's model, on one
            device or under ZeRO, and gradients are freed after each step.
        adapter: Fine-tuning by adapters on frozen weights; None trains every weight.

    Example:
        >>> Recipe().optimizer
        'adamw'
    """

    dtype: str = "bf16"
    weights: str = "bf16"
    gradients: str = "fp32"
    master: str | None = "fp32"
    moments: str = "fp32"
    optimizer: Optimizer = "adamw"
    reduce: str = "bf16"
    attention: Attention = "flash3"
    fused: bool = True
    composed: bool = True
    wide_scores: bool = True
    wide_norms: Literal["none", "rms", "all"] = "none"
    in_place: bool = False
    fused_qkv: bool = False
    overlap: bool = True
    dropout: bool = False
    logits: str = "fp32"
    chunked_loss: bool = False
    fused_loss: bool = False
    foreach: bool = False
    sized_experts: bool = False
    offload: bool = False
    offload_weights: bool = False
    bucket_elements: int = 0
    plain: bool = False
    adapter: Adapter | Prompt | None = None
