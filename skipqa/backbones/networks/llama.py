"""The decoder: a Llama-family language model in plain torch.

Enters: embeddings [B, T, D] and a key/value cache. Leaves: hidden states, logits, greedy
continuations. One class serves SmolLM2-135M and Qwen2-1.5B on a laptop and the 7B and 13B shapes
on a GPU; it knows nothing of images, passages or prompt templates. The cache has a fixed length so
that a decoding step can be captured in a CUDA graph.

Shapes: B batch, T new tokens, S cached tokens, D width, H heads, G key/value heads, E head width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tied: bool = False  # the output layer uses the embedding's weights
    qkv_bias: bool = False  # queries, keys and values have biases, as in Qwen2

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width


FEW_ROWS = 8  # the largest number of rows for which `product` transposes
MAX_GUESS = 6  # guessed tokens per pass: a few cost little more than one, many do

SMOLLM2_135M = LlamaConfig(49_152, 576, 30, 9, 3, 1_536, rope_theta=100_000.0, tied=True)
QWEN2_1_5B = LlamaConfig(
    151_936, 1_536, 28, 12, 2, 8_960, rope_theta=1e6, norm_eps=1e-6, tied=True, qkv_bias=True
)
VICUNA_7B = LlamaConfig(32_000, 4_096, 32, 32, 32, 11_008)
VICUNA_13B = LlamaConfig(32_000, 5_120, 40, 40, 40, 13_824)


class KVCache:
    """Keys and values of every layer, [layers, B, G, S, E], allocated once."""

    def __init__(
        self,
        config: LlamaConfig,
        batch: int,
        length: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (config.layers, batch, config.kv_heads, length, config.head_width)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def length(self) -> int:
        return self.keys.shape[3]

    @property
    def bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True, slots=True)
class Placement:
    """Where T new tokens of a forward pass stand in the cache, and which keys each may see."""

    slots_T: Tensor  # cache positions that their keys and values are written to
    rope: tuple[Tensor, Tensor]  # cos and sin of their positions, see `rotation`
    end: int  # S: only keys at cache positions below it are read
    mask_TS: Tensor | None  # true where a token may attend; None for plain causal attention


class Pass(NamedTuple):
    """One text's part of a packed pass."""

    x_1TD: Tensor
    cache: KVCache
    placed: Placement


Piece = tuple[Tensor, Tensor, Placement]  # keys and values of one layer [1, G, S, E], and where


class Constraint(Protocol):
    """Which tokens may be generated next, given those so far; see `quoting.SpanConstraint`."""

    def allowed(self) -> list[int]: ...

    def advance(self, token: int) -> None: ...

    def likely(self) -> list[int]:
        """A guess at the next tokens; a wrong one costs time and never changes the result."""


@dataclass(frozen=True, slots=True)
class Generation:
    tokens: list[int]
    log_probs: list[float]  # of each token
    flops: int


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T. With few rows, as when candidate answers are scored, a CPU computes W x^T twice as
    fast: for x W^T it first rearranges all of W."""
    rows = x.flatten(0, -2)
    if x.device.type != "cpu" or not 1 < len(rows) <= FEW_ROWS:
        return F.linear(x, weight)
    return (weight @ rows.T).T.contiguous().unflatten(0, x.shape[:-1])


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        found = product(x, self.weight)
        return found if self.bias is None else found + self.bias


class Embedding(nn.Embedding):
    def logits(self, hidden: Tensor) -> Tensor:
        """As the output layer of a decoder whose weights are tied."""
        return product(hidden, self.weight)


class Layer(nn.Module):
    def __init__(self, config: LlamaConfig, linear: type[Linear] = Linear) -> None:
        super().__init__()
        self.config = config
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        # One matrix each for q|k|v and gate|up: fewer, larger products.
        joined = config.width + 2 * config.kv_width
        self.qkv = linear(config.width, joined, bias=config.qkv_bias)
        self.out = linear(config.width, config.width, bias=False)
        self.ffn_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.gate_up = linear(config.width, 2 * config.ffn, bias=False)
        self.down = linear(config.ffn, config.width, bias=False)

    def forward(
        self,
        x_BTD: Tensor,
        keys_BGSE: Tensor,
        values_BGSE: Tensor,
        placed: Placement,
    ) -> Tensor:
        q_BHTE, k_BGTE, v_BGTE = self._project(x_BTD, placed.rope)
        keys_BGSE.index_copy_(2, placed.slots_T, k_BGTE)
        values_BGSE.index_copy_(2, placed.slots_T, v_BGTE)
        keys, values = keys_BGSE[:, :, : placed.end], values_BGSE[:, :, : placed.end]
        return self._mix(x_BTD, q_BHTE, keys, values, placed.mask_TS)

    def without_cache(self, x_BTD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """As `forward` of whole texts, from their first token on."""
        q_BHTE, k_BGTE, v_BGTE = self._project(x_BTD, rope)
        return self._mix(x_BTD, q_BHTE, k_BGTE, v_BGTE, None)

    def _project(self, x_BTD: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        B, T, _ = x_BTD.shape
        qkv = self.qkv(self.attention_norm(x_BTD)).view(B, T, -1, c.head_width).transpose(1, 2)
        qk, v_BGTE = qkv.split((c.heads + c.kv_heads, c.kv_heads), dim=1)
        q_BHTE, k_BGTE = rotate(qk, rope).split((c.heads, c.kv_heads), dim=1)
        return q_BHTE, k_BGTE, v_BGTE

    def packed(self, x_1ND: Tensor, rope: tuple[Tensor, Tensor], pieces: Sequence[Piece]) -> Tensor:
        """As `forward` for the tokens of several texts in a row: only attention keeps them apart,
        each text having a cache of its own."""
        q_1HNE, k_1GNE, v_1GNE = self._project(x_1ND, rope)
        attended = []
        start = 0
        for keys_1GSE, values_1GSE, placed in pieces:
            rows = slice(start, start := start + len(placed.slots_T))
            keys_1GSE.index_copy_(2, placed.slots_T, k_1GNE[:, :, rows])
            values_1GSE.index_copy_(2, placed.slots_T, v_1GNE[:, :, rows])
            keys, values = keys_1GSE[:, :, : placed.end], values_1GSE[:, :, : placed.end]
            attended.append(self._attend(q_1HNE[:, :, rows], keys, values, placed.mask_TS))
        return self._transform(x_1ND, torch.cat(attended, dim=2))

    def _mix(
        self, x_BTD: Tensor, q_BHTE: Tensor, keys: Tensor, values: Tensor, mask_TS: Tensor | None
    ) -> Tensor:
        return self._transform(x_BTD, self._attend(q_BHTE, keys, values, mask_TS))

    def _attend(
        self, q_BHTE: Tensor, keys: Tensor, values: Tensor, mask_TS: Tensor | None
    ) -> Tensor:
        return F.scaled_dot_product_attention(
            q_BHTE,
            keys,
            values,
            attn_mask=mask_TS,
            is_causal=mask_TS is None and q_BHTE.shape[2] > 1,
            enable_gqa=self.config.kv_heads != self.config.heads,
        )

    def _transform(self, x_BTD: Tensor, mixed_BHTE: Tensor) -> Tensor:
        x_BTD = x_BTD + self.out(mixed_BHTE.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.ffn_norm(x_BTD)).chunk(2, dim=-1)
        return x_BTD + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(
        self,
        config: LlamaConfig,
        linear: type[Linear] = Linear,
        embedding: type[Embedding] = Embedding,
    ) -> None:
        """`linear` and `embedding` say how matrices are stored; `int8.py` has another way."""
        super().__init__()
        self.config = config
        self.embedding = embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config, linear) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        if not config.tied:
            self.unembedding = linear(config.width, config.vocabulary, bias=False)

    def forward(
        self, x_BTD: Tensor, cache: KVCache, positions_T: Tensor, end: int, *, from_zero: bool
    ) -> Tensor:
        """Hidden states [B, T, D] of the new tokens; their keys and values enter the cache.

        `positions_T` are the tokens' positions; each attends to the keys before `end` up to its
        own position. `from_zero` says that the tokens start the text, so that the plain causal
        kernel applies, which is faster than an explicit mask.
        """
        rope = rotation(self.config, positions_T, x_BTD.dtype)
        mask = None
        if not from_zero:
            mask = torch.arange(end, device=x_BTD.device)[None] <= positions_T[:, None]
        return self.forward_at(x_BTD, cache, Placement(positions_T, rope, end, mask))

    def forward_at(self, x_BTD: Tensor, cache: KVCache, placed: Placement) -> Tensor:
        """As `forward`, for tokens whose cache slots differ from their positions, or that attend
        to something other than everything before them: the nodes of a tree."""
        for index, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, cache.keys[index], cache.values[index], placed)
        return self.norm(x_BTD)

    def forward_packed(self, passes: Sequence[Pass]) -> list[Tensor]:
        """What `forward_at` gives for each of several texts, in one pass over the weights. Sums
        over more rows may round differently."""
        lengths = [one.x_1TD.shape[1] for one in passes]
        x_1ND = torch.cat([one.x_1TD for one in passes], dim=1)
        cos, sin = zip(*(one.placed.rope for one in passes), strict=True)
        rope = torch.cat(cos), torch.cat(sin)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            pieces = [(p.cache.keys[index], p.cache.values[index], p.placed) for p in passes]
            x_1ND = layer.packed(x_1ND, rope, pieces)
        return list(self.norm(x_1ND).split(lengths, dim=1))

    def states(self, x_BTD: Tensor, *, recompute: bool = False) -> Tensor:
        """Hidden states [B, T, D] of whole texts, without a cache: the form used in training. With
        `recompute`, what a layer computes is not kept for the backward pass but computed again."""
        return self.norm(self.early_states(x_BTD, len(self.layers), recompute=recompute))

    def early_states(self, x_BTD: Tensor, layers: int, *, recompute: bool = False) -> Tensor:
        """What the first so many layers leave of whole texts, [B, T, D]."""
        rope = rotation(self.config, torch.arange(x_BTD.shape[1], device=x_BTD.device), x_BTD.dtype)
        for layer in self.layers[:layers]:
            assert isinstance(layer, Layer)
            if recompute:
                x_BTD = checkpoint(layer.without_cache, x_BTD, rope, use_reentrant=False)
            else:
                x_BTD = layer.without_cache(x_BTD, rope)
        return x_BTD

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight if self.config.tied else self.unembedding.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., vocabulary] in float32, for the positions that need them."""
        output = self.embedding.logits if self.config.tied else self.unembedding
        return output(hidden).float()

    @torch.inference_mode()
    def generate(
        self,
        x_1TD: Tensor,
        max_new: int,
        stop: Iterable[int] = (),
        constraint: Constraint | None = None,
        past: KVCache | None = None,
    ) -> Generation:
        """Greedy continuation of one prompt, up to and without a stop token.

        `past` is the cache of what stands before the prompt (see `read`); it is not changed.

        With a constraint, only the tokens that it allows are considered. The tokens that it
        guesses are read in one pass with the token before them: those that are then chosen cost
        almost nothing, the rest is discarded. The result equals decoding one token at a time.
        """
        stop, device = set(stop), x_1TD.device
        cache, hidden_ND = self._prefill(x_1TD, past, room=max_new + MAX_GUESS)
        T = cache.length - max_new - MAX_GUESS  # tokens read so far
        spent = flops(self.config, x_1TD.shape[1], T)
        if max_new == 0:
            return Generation([], [], spent)
        tokens: list[int] = []
        scores: list[float] = []
        guess: list[int] = []
        while True:
            for place, scored in enumerate(self.logits(hidden_ND).log_softmax(-1)):
                token = _best(scored, constraint)
                if token in stop:
                    return Generation(tokens, scores, spent)
                tokens.append(token)
                scores.append(float(scored[token]))
                if len(tokens) == max_new:
                    return Generation(tokens, scores, spent)
                if constraint is not None:
                    constraint.advance(token)
                if place == len(guess) or token != guess[place]:
                    break
            guess = [] if constraint is None else constraint.likely()[:MAX_GUESS]
            step = torch.tensor([[tokens[-1], *guess]], device=device)
            first = T + len(tokens) - 1
            end = first + step.shape[1]
            positions = torch.arange(first, end, device=device)
            hidden_ND = self(self.embedding(step), cache, positions, end, from_zero=False)[0]
            spent += flops(self.config, len(positions), end, logits=len(positions))

    @torch.inference_mode()
    def read(self, x_1TD: Tensor, past: KVCache | None = None) -> KVCache:
        """A cache of `past` followed by these tokens, to continue from later."""
        return self._prefill(x_1TD, past, room=0)[0]

    def _prefill(self, x_1TD: Tensor, past: KVCache | None, room: int) -> tuple[KVCache, Tensor]:
        """A cache with `room` for more tokens, and the last hidden state [1, D]."""
        start = 0 if past is None else past.length
        end, device = start + x_1TD.shape[1], x_1TD.device
        cache = KVCache(self.config, 1, end + room, dtype=x_1TD.dtype, device=device)
        if past is not None:
            cache.keys[:, :, :, :start] = past.keys
            cache.values[:, :, :, :start] = past.values
        positions = torch.arange(start, end, device=device)
        hidden_1TD = self(x_1TD, cache, positions, end, from_zero=start == 0)
        return cache, hidden_1TD[0, -1:]


def _best(scored: Tensor, constraint: Constraint | None) -> int:
    if constraint is None:
        return int(scored.argmax())
    allowed = torch.tensor(constraint.allowed(), device=scored.device)
    return int(allowed[scored[allowed].argmax()])


def rotation(config: LlamaConfig, positions_T: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [T, E] of the rotary position embedding. The sine of the first half is negated,
    because there the rotated partner is subtracted."""
    half = torch.arange(0, config.head_width, 2, device=positions_T.device, dtype=torch.float32)
    angles = positions_T[:, None] * config.rope_theta ** (-half / config.head_width)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (part.to(x.dtype) for part in rope)  # under autocast x has fewer bits
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((second, first), dim=-1) * sin


def from_hub_names(state: Mapping[str, Tensor], config: LlamaConfig) -> dict[str, Tensor]:
    """The state of `Llama` from a Hugging Face checkpoint."""
    return dict(renamed(state, config))


def renamed(state: Mapping[str, Tensor], config: LlamaConfig) -> Iterator[tuple[str, Tensor]]:
    """As `from_hub_names`, one tensor after another: q|k|v and gate|up are joined."""
    yield "embedding.weight", state["model.embed_tokens.weight"]
    yield "norm.weight", state["model.norm.weight"]
    if not config.tied:
        yield "unembedding.weight", state["lm_head.weight"]
    for i in range(config.layers):
        old, new = f"model.layers.{i}.", f"layers.{i}."
        yield f"{new}attention_norm.weight", state[f"{old}input_layernorm.weight"]
        yield f"{new}ffn_norm.weight", state[f"{old}post_attention_layernorm.weight"]
        yield f"{new}out.weight", state[f"{old}self_attn.o_proj.weight"]
        yield f"{new}down.weight", state[f"{old}mlp.down_proj.weight"]
        for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
            qkv = [state[f"{old}self_attn.{x}_proj.{kind}"] for x in "qkv"]
            yield f"{new}qkv.{kind}", torch.cat(qkv)
        gate_up = [state[f"{old}mlp.{x}_proj.weight"] for x in ("gate", "up")]
        yield f"{new}gate_up.weight", torch.cat(gate_up)


def flops(config: LlamaConfig, new: int, context: int, *, logits: int = 1) -> int:
    """FLOPs of one pass: `new` tokens that see `context` tokens, logits at `logits` of them.

    A multiply and an add count as two. Attention is counted without the causal saving, as torch's
    counter does.
    """
    per_layer = config.width * (2 * config.width + 2 * config.kv_width + 3 * config.ffn)
    attention = 2 * config.width * context
    linear = new * config.layers * (per_layer + attention)
    return 2 * (linear + logits * config.width * config.vocabulary)


def early_flops(config: LlamaConfig, layers: int, new: int) -> int:
    """FLOPs of `new` tokens through the first so many layers."""
    return flops(replace(config, layers=min(layers, config.layers)), new, new, logits=0)


def generation_flops(config: LlamaConfig, prompt: int, steps: int) -> int:
    """FLOPs of a prompt and then `steps` tokens, one at a time."""
    decoded = sum(flops(config, 1, prompt + n) for n in range(1, steps + 1))
    return flops(config, prompt, prompt) + decoded
