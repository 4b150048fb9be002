"""Fusion in the decoder, for a decoder-only model: passages read apart, answered from together.

Every passage is read with the question into its own stretch of keys and values, blind to the other
passages; the answer's tokens attend to all stretches at once. What comes before every passage, the
worked examples of an untrained decoder, is read once. A trained decoder answers freely and is
scored together with the drafter, as in SKIP.

A stretch is rotated so that it ends where the answer begins: RoPE only sees distances, so each
passage is as near to the answer as if it were the only one, and with one passage this is plain
decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from tokenizers import Encoding
from torch import Tensor

from skipqa.backbones.backbone import Completion, Decoding
from skipqa.backbones.networks.llama import KVCache, LlamaConfig, flops, rotate, rotation
from skipqa.backbones.presets.pocket import Pocket
from skipqa.errors import UserError
from skipqa.stages.decode import Decode
from skipqa.stages.prompts import ENDING
from skipqa.stages.readers import EXAMPLES, QuotingReader, ShortReader
from skipqa.stages.stage import Parts


class ReadApart:
    """Each fact in a prompt of its own."""

    def __init__(self, backbone: Pocket) -> None:
        self.backbone = backbone

    def __call__(
        self,
        write: Callable[[Sequence[str]], str],
        facts: Sequence[str],
        decoding: Decoding,
        visual: Tensor | None = None,
    ) -> tuple[Completion, str]:
        assert visual is None
        prompts = [write([fact]) for fact in facts] or [write([])]
        completion = generate_jointly(self.backbone, prompts, decoding)
        return completion, "\n\n".join(prompt.removeprefix(EXAMPLES) for prompt in prompts)


def read_apart(parts: Parts) -> Decode:
    """decode: as SKIP's, but with the passages in one prompt each."""
    config, backbone = parts.config.decode, parts.backbone
    if not isinstance(backbone, Pocket) or config.prompt == "chat":
        raise UserError("the system fid needs the preset pocket")
    if config.reads_fused:
        raise UserError("the system fid reads passages as text: set decode.passages = 'text'")
    apart = ReadApart(backbone)
    quoting = QuotingReader(config, backbone, apart)
    short = config.prompt == "short"
    reader = ShortReader(config, backbone, apart, quoting) if short else quoting
    return Decode(reader, parts.config.confidence)


@torch.inference_mode()
def generate_jointly(backbone: Pocket, prompts: Sequence[str], decoding: Decoding) -> Completion:
    """The greedy completion of all prompts at once; they start with the same examples, or else
    the same first word, and have the same ending."""
    decoder, tokenizer = backbone.decoder, backbone.decoder_tokenizer
    shared = EXAMPLES if prompts[0].startswith(EXAMPLES) else prompts[0].partition(" ")[0]
    parts = [_split(encoding, shared) for encoding in tokenizer.encode_batch(list(prompts))]
    opening, _, ending = parts[0]

    def embed(ids: Sequence[int]) -> torch.Tensor:
        return decoder.embedding(torch.tensor([ids], device=decoder.embedding.weight.device))

    examples = decoder.read(embed(opening))
    spent = flops(decoder.config, len(opening), len(opening), logits=0)
    stretches = []
    for _, ids, _ in parts:
        stretches.append(decoder.read(embed(ids), examples))
        spent += flops(decoder.config, len(ids), len(opening) + len(ids), logits=0)
    past = join(decoder.config, examples, stretches)
    completion = backbone.generate_embedded(embed(ending), decoding, past)
    return replace(completion, flops=completion.flops + spent)


def _split(prompt: Encoding, shared: str) -> tuple[list[int], list[int], list[int]]:
    """Tokens of the shared start, of the passage with the question, and of the ending."""
    ends = [end for _, end in prompt.offsets]
    first = sum(end <= len(shared) for end in ends)
    last = sum(end <= ends[-1] - len(ENDING) for end in ends)
    return prompt.ids[:first], prompt.ids[first:last], prompt.ids[last:]


def join(config: LlamaConfig, shared: KVCache, stretches: Sequence[KVCache]) -> KVCache:
    """What was read once, then what each stretch added to it, as one past of the answer.

    Rotating a key by n more moves its token n places on.
    """
    start = shared.length
    longest = max(stretch.length for stretch in stretches)
    end = start + sum(stretch.length - start for stretch in stretches)
    joined = KVCache(config, 1, end, dtype=shared.keys.dtype, device=shared.keys.device)
    # Of each piece: its keys and values, and how many places it moves.
    pieces = [(shared.keys, shared.values, end - longest)]
    pieces += [
        (stretch.keys[..., start:, :], stretch.values[..., start:, :], end - stretch.length)
        for stretch in stretches
    ]
    place = 0
    for keys, values, moved in pieces:
        rope = rotation(config, torch.tensor([moved], device=keys.device), keys.dtype)
        after = place + keys.shape[3]
        joined.keys[..., place:after, :] = rotate(keys, rope)
        joined.values[..., place:after, :] = values
        place = after
    return joined
