"""Fusion in the decoder, for a decoder-only model: passages read apart, answered from together.

Enters: what the decode stage gets. Leaves: the answer. Every passage is read with the question
into its own stretch of keys and values, blind to the other passages; the answer's tokens attend
to all stretches at once. What comes before every passage, the worked examples of an untrained
decoder, is read once. A trained one replies freely and is weighed with the drafter, as in ours.

A stretch is rotated so that it ends right where the answer begins: RoPE only sees distances, so
each passage is as near to the answer as if it were the only one, and with one passage this
is plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from tokenizers import Encoding

from skipqa.backbones.backbone import Backbone, Completion, Decoding
from skipqa.backbones.networks.llama import KVCache, LlamaConfig, flops, rotate, rotation
from skipqa.backbones.presets.pocket import Pocket
from skipqa.config import DecodeConfig
from skipqa.errors import UserError
from skipqa.language import words_of
from skipqa.stages.decode import (
    EXAMPLES,
    as_written,
    explained,
    facts,
    names_shown,
    read,
    read_order,
    words_shown,
    write_prompt,
)
from skipqa.stages.prompts import ENDING, reading_prompt
from skipqa.trace import StageRecord
from skipqa.types import Budget, Draft, Fused, KeptTokens, Question, Region, Verified


def read_apart(
    question: Question,
    drafted: Draft,
    allowed: Budget,
    kept_tokens: KeptTokens,
    regions: Sequence[Region],
    verified: Verified,
    fused: Fused,
    backbone: Backbone,
    config: DecodeConfig,
    record: StageRecord,
) -> str:
    """decode: as ours, but for the passages in one prompt each."""
    if not isinstance(backbone, Pocket):
        raise UserError("the system fid needs the preset pocket")
    used = read_order(verified, fused)[: config.max_passages]
    texts = facts(verified, used)
    shown = names_shown(regions, backbone.concepts)
    each = [[text] for text in texts] or [[]]
    if config.prompt == "short" and not explained(question, texts):
        words = words_shown(kept_tokens.tokens.words, config) or shown
        prompts = [reading_prompt(fact, words, question.text) for fact in each]
        unread = reading_prompt([], words, question.text)

        def generate(candidates: Sequence[tuple[str, float]]) -> Completion:
            decoding = Decoding(config.max_new_tokens, candidates=tuple(candidates))
            return generate_jointly(backbone, prompts, decoding)

        completion, answer, how = read(generate, texts, unread, drafted, backbone, config)
        answer = as_written(answer, texts)
    else:
        prompts, how = [write_prompt(question, fact, shown) for fact in each], "by examples"
        known = words_of(" ".join([question.text, *shown]))
        decoding = Decoding(config.max_new_tokens, tuple(texts), frozenset(known))
        completion = generate_jointly(backbone, prompts, decoding)
        answer = completion.text
    record.flops = completion.flops
    record.kept, record.dropped = len(used), len(verified.passages) - len(used)
    record.why = f"{how}: {completion.prompt_tokens} prompt tokens, {completion.new_tokens} new"
    record.result = "\n\n".join(prompt.removeprefix(EXAMPLES) for prompt in prompts)
    return answer


@torch.inference_mode()
def generate_jointly(backbone: Pocket, prompts: Sequence[str], decoding: Decoding) -> Completion:
    """The greedy completion of all prompts at once; they start with the same examples, or else
    the same first word, and have the same ending."""
    decoder, tokenizer = backbone.decoder, backbone.decoder_tokenizer
    shared = EXAMPLES if prompts[0].startswith(EXAMPLES) else prompts[0].partition(" ")[0]
    parts = [_split(encoding, shared) for encoding in tokenizer.encode_batch(list(prompts))]
    opening, _, ending = parts[0]

    def embed(ids: Sequence[int]) -> torch.Tensor:
        return decoder.embedding(torch.tensor([ids]))

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
