"""Constants of serving: what an engine's step reaches of a chip, and what it takes beside."""

from __future__ import annotations

from scantling.hardware.constants.fitted import Fitted


class ServeConstants(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One set for every engine; ``costs.serve`` has the formula.

    Args:
        weights: Fraction of the memory bandwidth at which dense weights are read.
        experts: The same for the routed experts that a step touches.
        cache: The same for keys, values and states.
        narrow: What reading weights takes over their bytes that are widened on the way, at least 1.
        matmul: What dense products of a prompt reach of the rate that the chip's large ones do.
        grouped: The same for the products of routed experts.
        attention: The same for attention, of the 16-bit peak.
        link: Fraction of the link's bandwidth that collectives reach.
        launch_s: What each kernel takes beside.
        routed_s: What the routing of a layer takes beside: choosing, sorting, quantising.
        reduce_s: What each all-reduce takes beside its bytes.
        step_s: What a step takes beside its layers.
        sequence_s: What the host does for each sequence of a step: scheduling, sampling, sending.
        eager_s: What each kernel of a prompt's pass adds to the wait for the first token behind a
            server: scheduling, and a host that captured no graph of the pass.
        own: Prefills of others that a request's own wait for its first token hides.
        memory: Fraction of the memory that weights and cache may fill.
        decode_low: Low end of the 90 % range of measured over predicted time per token.
        decode_high: Its high end.
        experts_low: The same for models with routed experts.
        experts_high: Its high end.
        first_low: The same for the time to the first token at low load.
        first_high: Its high end.
        prompt_low: The same for a prompt alone in an engine without a server.
        prompt_high: Its high end.
        rate_low: The same for offline throughput, whose batch is ours to guess.
        rate_high: Its high end.
    """

    weights: float
    experts: float
    cache: float
    narrow: float
    matmul: float
    grouped: float
    attention: float
    link: float
    launch_s: float
    routed_s: float
    reduce_s: float
    step_s: float
    sequence_s: float
    eager_s: float
    own: float
    memory: float
    decode_low: float
    decode_high: float
    experts_low: float
    experts_high: float
    first_low: float
    first_high: float
    prompt_low: float
    prompt_high: float
    rate_low: float
    rate_high: float
