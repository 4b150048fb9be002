"""Decoding as CUDA graphs: static buffers, one recorded graph per shape.

Enters: a decoder and the prompt lengths to expect. Leaves: greedy completions. Launching the
kernels of a 7B step takes longer than running them; recorded once, a step is one launch. Every
tensor that a graph reads or writes is allocated here and keeps its address. Without a GPU the
same code runs eagerly, so that it can be tested on a CPU. A step for a single prompt uses fused
kernels (`ops/one_token.py`); a batch uses the decoder's own layers.

Shapes as in `llama.py`; W logits at the end of a prompt, enough to check a draft of W - 1 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from skipqa.backbones.networks.llama import KVCache, Layer, Llama, rotation
from skipqa.errors import UserError
from skipqa.ops.bipartite_attention.dispatch import triton_is_installed


class StaticDecoder:
    def __init__(
        self,
        model: Llama,
        *,
        batch: int,
        prompts: Sequence[int],
        max_new: int,
        max_draft: int = 0,
    ) -> None:
        """`prompts` are the lengths to record; other prompts are padded to the next longer one."""
        weight = model.embedding.weight
        self.model, self.max_draft = model, max_draft
        self._prompts = sorted(set(prompts))
        self._max_new = max_new
        length = self._prompts[-1] + max_new
        self.cache = KVCache(model.config, batch, length, dtype=weight.dtype, device=weight.device)

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=weight.device)

        self._position = zeros(1)  # of the next token
        self._token = zeros(batch, 1)
        self._predicted = zeros(batch, max_draft + 1)  # after each of the last W prompt tokens
        self._prompt = zeros(batch, self._prompts[-1], model.config.width, dtype=weight.dtype)
        whole_tiles = model.config.head_width.bit_count() == 1
        self._alone = batch == 1 and weight.is_cuda and whole_tiles and triton_is_installed()
        self._rope = rotation(
            model.config, torch.arange(length, device=weight.device), weight.dtype
        )
        self._captured: dict[tuple[str, int], Callable[[], object]] = {}

    @torch.inference_mode()
    def generate(self, x_BTD: Tensor, num_tokens: int) -> Tensor:
        """Greedy token ids [B, num_tokens], without a synchronisation with the host."""
        bucket = self._prefill(x_BTD)
        tokens = [self._predicted[:, -1:].clone()]
        self._token.copy_(tokens[0])
        while len(tokens) < num_tokens:
            tokens.append(self._step(bucket))
        return torch.cat(tokens, dim=1)

    @torch.inference_mode()
    def generate_checking(self, x_1TD: Tensor, draft: Sequence[int], num_tokens: int) -> list[int]:
        """As `generate` for one prompt, with a draft to verify (speculative decoding).

        One pass over prompt and draft shows which of the draft's tokens the decoder would have
        generated itself; those cost no step. The completion is the same with any draft.
        """
        draft = list(draft)[: min(self.max_draft, num_tokens - 1)]
        drafted = torch.tensor(draft, dtype=torch.int64, device=x_1TD.device)
        x_1TD = torch.cat((x_1TD, self.model.embedding(drafted)[None]), dim=1)
        bucket = self._prefill(x_1TD)
        predicted = self._predicted[0, self.max_draft - len(draft) :].tolist()
        agreed = next((i for i, token in enumerate(draft) if predicted[i] != token), len(draft))
        tokens = predicted[: agreed + 1]
        self._position.fill_(x_1TD.shape[1] - len(draft) + agreed)
        self._token.fill_(tokens[-1])
        while len(tokens) < num_tokens:
            tokens.append(int(self._step(bucket)))
        return tokens

    def _prefill(self, x_BTD: Tensor) -> int:
        length = x_BTD.shape[1]
        bucket = next((n for n in self._prompts if n >= length), None)
        if bucket is None:
            raise UserError(
                f"the prompt has {length} tokens; the longest recorded has {self._prompts[-1]}"
            )
        self._prompt[:, :length] = x_BTD
        self._position.fill_(length)
        self._run("prefill", bucket, self._prefill_pass)
        return bucket

    def _step(self, bucket: int) -> Tensor:
        self._run("step", bucket, self._step_pass)
        return self._token.clone()

    def _prefill_pass(self, bucket: int) -> None:
        # Padding follows the prompt: the causal mask hides it, and its keys lie where no step
        # reads before it has written its own.
        positions = torch.arange(bucket, device=self._prompt.device)
        hidden_BTD = self.model(
            self._prompt[:, :bucket], self.cache, positions, bucket, from_zero=True
        )
        window = torch.arange(-self.max_draft - 1, 0, device=positions.device) + self._position
        self._predicted.copy_(self.model.logits(hidden_BTD[:, window.clamp(min=0)]).argmax(-1))

    def _step_pass(self, bucket: int) -> None:
        x_B1D, end = self.model.embedding(self._token), bucket + self._max_new
        if self._alone:
            logits = one_token(self.model, x_B1D[0, 0], self.cache, self._rope, self._position)
        else:
            hidden_B1D = self.model(x_B1D, self.cache, self._position, end, from_zero=False)
            logits = self.model.logits(hidden_B1D)
        self._token.copy_(logits.argmax(-1))
        self._position += 1

    def _run(self, name: str, bucket: int, body: Callable[[int], None]) -> None:
        if not self._prompt.is_cuda:
            body(bucket)
            return
        key = (name, bucket)
        if key not in self._captured:
            position, token = self._position.clone(), self._token.clone()
            self._captured[key] = capture(lambda: body(bucket))
            self._position.copy_(position)  # recording has run the body a few times
            self._token.copy_(token)
        self._captured[key]()


def one_token(
    model: Llama, x_D: Tensor, cache: KVCache, rope_SE: tuple[Tensor, Tensor], position_1: Tensor
) -> Tensor:
    """Logits [vocabulary] after the token at `position_1` of the only text in the cache; its keys
    and values are written there. `rope_SE` is the rotation of every position."""
    from skipqa.ops.one_token import attend, product

    for layer, keys_1GSE, values_1GSE in zip(model.layers, cache.keys, cache.values, strict=True):
        assert isinstance(layer, Layer)
        qkv = product(x_D, layer.qkv.weight, norm=layer.attention_norm, plus=layer.qkv.bias)
        mixed = attend(qkv, rope_SE, keys_1GSE[0], values_1GSE[0], position_1)
        x_D = product(mixed, layer.out.weight, plus=x_D)
        gated = product(x_D, layer.gate_up.weight, norm=layer.ffn_norm, gated=True)
        x_D = product(gated, layer.down.weight, plus=x_D)
    return product(x_D, model.output_weight, norm=model.norm, dtype=torch.float32)


def capture(run: Callable[[], object]) -> Callable[[], None]:
    """`run` recorded as one CUDA graph, after warm-up runs that compile and allocate."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
