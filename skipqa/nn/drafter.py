"""SKV, first half: answer from the image alone, and know when that suffices.

Enters: visual tokens [B, V, D_v], question tokens [B, T, D_q] and, where words for the
image were predicted, their embeddings [B, W, D_q] and probabilities [B, W]. Leaves:
logits over a fixed answer vocabulary; with its temperature fitted on held-out data, a confidence
that can be compared with a threshold. Its config carries the answers' words, so that a
checkpoint does; it does not know what the full path does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ABSTAIN = ""  # in the vocabulary, but no answer: the question is left to the full path
POLAR = ("yes", "no")


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    visual_tokens: int  # V: the grid's positions are learned
    visual_width: int
    question_width: int
    answers: tuple[str, ...]  # the vocabulary
    width: int = 256
    layers: int = 4
    heads: int = 4
    ffn: int = 1024
    words: bool = False  # also reads words for what the image shows
    named_answers: bool = False  # answers are also scored by what they mean, in question space
    counted_answers: bool = False  # how frequent each is among training answers is known
    dropout: float = 0.0


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.ffn_norm = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, config.ffn)
        self.down = nn.Linear(config.ffn, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BND: Tensor, mask_B11N: Tensor | None) -> Tensor:
        B, N, D = x_BND.shape
        qkv = self.qkv(self.attention_norm(x_BND)).view(B, N, 3, self.heads, D // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_B11N)
        x_BND = x_BND + self.dropout(self.out(mixed.transpose(1, 2).reshape(B, N, D)))
        return x_BND + self.dropout(self.down(F.gelu(self.up(self.ffn_norm(x_BND)))))


class Drafter(nn.Module):
    temperature: Tensor
    answer_names: Tensor
    log_frequency: Tensor  # [answers], 0 where they were not counted

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.visual_norm = nn.LayerNorm(config.visual_width)
        self.of_visual = nn.Linear(config.visual_width, config.width)
        self.of_question = nn.Linear(config.question_width, config.width)
        self.places = nn.Parameter(torch.randn(config.visual_tokens, config.width) * 0.02)
        self.summary = nn.Parameter(torch.randn(config.width) * 0.02)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.to_answers = nn.Linear(config.width, len(config.answers))
        self.dropout = nn.Dropout(config.dropout)
        if config.words:
            self.of_word = nn.Linear(config.question_width, config.width)
            self.of_prob = nn.Linear(2, config.width)
        if config.named_answers:
            self.to_meaning = nn.Linear(config.width, config.question_width)
            self.meaning_scale = nn.Parameter(torch.tensor(10.0))
            names = torch.zeros(len(config.answers), config.question_width)
            self.register_buffer("answer_names", names)  # unit length
        self.register_buffer("temperature", torch.ones(()))
        uncounted = torch.zeros(len(config.answers))
        self.register_buffer("log_frequency", uncounted, persistent=config.counted_answers)

    def forward(
        self,
        visual_BVD: Tensor,
        question_BTD: Tensor,
        mask_BT: Tensor | None = None,
        words: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Uncalibrated logits [B, answers]; `mask_BT` is true at real question tokens, `words`
        are embeddings [B, W, D_q] and probabilities [B, W]."""
        visual = self.of_visual(self.visual_norm(visual_BVD)) + self.places
        before = [self.summary.expand(len(visual), 1, -1), visual]
        if self.config.words:
            assert words is not None
            before.append(self._of_words(*words))
        x = self.dropout(torch.cat((*before, self.of_question(question_BTD)), dim=1))
        mask = None
        if mask_BT is not None:
            mask = F.pad(mask_BT, (x.shape[1] - mask_BT.shape[1], 0), value=True)[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        summary = self.norm(x[:, 0])
        logits: Tensor = self.to_answers(self.dropout(summary))
        if self.config.named_answers:
            meaning = F.normalize(self.to_meaning(summary), dim=-1)
            logits = logits + self.meaning_scale * (meaning @ self.answer_names.T)
        return logits

    def _of_words(self, embeddings_BWD: Tensor, probs_BW: Tensor) -> Tensor:
        """A probability matters by its size among the large and by its order among the small."""
        probs = torch.stack((probs_BW, (probs_BW + 1e-4).log() / 5), dim=-1)
        return self.of_word(embeddings_BWD) + self.of_prob(probs.to(embeddings_BWD))

    def vocabulary(self) -> dict[str, float]:
        """The log-frequency of each answer."""
        return dict(zip(self.config.answers, self.log_frequency.tolist(), strict=True))

    def log_probs(self, logits: Tensor) -> Tensor:
        """Calibrated log-probabilities of all answers."""
        return (logits / self.temperature).log_softmax(-1)

    def draft(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(index of the answer, calibrated confidence), one per question."""
        best = self.log_probs(logits).max(-1)
        return best.indices, best.values.exp()

    @torch.no_grad()
    def calibrate(self, logits: Tensor, answers: Tensor) -> float:
        """Fits the temperature on held-out logits [N, answers]; returns it."""
        self.temperature.fill_(fit_temperature(logits, answers))
        return float(self.temperature)


@torch.no_grad()
def above_chance(answer: str, prob: float) -> float:
    """The confidence in an answer of this calibrated probability. One of yes and no is right half
    the time whatever the image shows: what counts is how far above that it is."""
    return max(0.0, 2 * prob - 1) if answer in POLAR else prob


def fit_temperature(logits: Tensor, answers: Tensor, *, span: float = 50.0) -> float:
    """The temperature in [1/span, span] of least cross-entropy (Guo et al., 2017).

    The loss is convex in 1/T, hence unimodal in log T: a golden-section search finds it.
    """

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits.double() / math.exp(log_temperature), answers))

    low, high = -math.log(span), math.log(span)
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 1e-4:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = loss(right)
    return math.exp((low + high) / 2)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A threshold and what it does on the held-out split."""

    threshold: float
    draft_rate: float  # fraction of questions on the fast path
    accuracy: float  # of the routed system
    full_accuracy: float  # of the full path alone


def calibrate_threshold(
    confidence_N: Tensor, draft_score_N: Tensor, full_score_N: Tensor, max_loss: float = 0.01
) -> Calibration:
    """The threshold that drafts most while losing at most `max_loss` (0.01: one point).

    Scores are the benchmark's, in [0, 1], of the drafter and of the full path on the same
    questions; counting questions are calibrated apart, drafters being overconfident where objects
    overlap. Where not even the surest drafts pass, the threshold is 1 and nothing is drafted.
    """
    confidence, order = confidence_N.double().sort(descending=True)
    gain = (draft_score_N - full_score_N).double()[order].cumsum(0) / len(order)
    full_accuracy = float(full_score_N.double().mean())
    # A threshold takes all questions of equal confidence or none: only the last of a tie counts.
    last_of_tie = torch.ones_like(confidence, dtype=torch.bool)
    last_of_tie[:-1] = confidence[:-1] > confidence[1:]
    allowed = (last_of_tie & (gain >= -max_loss - 1e-12)).nonzero()[:, 0]
    if len(allowed) == 0:
        return Calibration(1.0, 0.0, full_accuracy, full_accuracy)
    last = int(allowed[-1])
    below = float(confidence[last + 1]) if last + 1 < len(confidence) else 0.0
    # The route is strict (c > tau): the next lower confidence itself stays off the fast path.
    return Calibration(
        threshold=below,
        draft_rate=(last + 1) / len(confidence),
        accuracy=full_accuracy + float(gain[last]),
        full_accuracy=full_accuracy,
    )


def flops(config: DrafterConfig, question_tokens: int, words: int = 0) -> int:
    """FLOPs of one draft, a multiply and an add counted as two."""
    of_words = words * (config.question_width + 2) if config.words else 0
    inputs = (
        config.visual_tokens * config.visual_width
        + question_tokens * config.question_width
        + of_words
    ) * config.width
    tokens = 1 + config.visual_tokens + question_tokens + (words if config.words else 0)
    per_token = config.width * (4 * config.width + 2 * config.ffn + 2 * tokens)
    outputs = config.width * len(config.answers)
    if config.named_answers:
        outputs += config.question_width * (config.width + len(config.answers))
    return 2 * (inputs + config.layers * tokens * per_token + outputs)
