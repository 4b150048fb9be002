"""What training a reader takes, computed on paper before it starts.

FLOPs per token, P being the parameters of the layers (1.31e9 for Qwen2-1.5B) and T the tokens it
attends to: forward 2 P + 4 L D T; backward the same for what passes through the frozen matrices,
none for their own gradients; with recomputation the forward pass once more. Factors of rank r add 2
r (in + out) per matrix forward and twice that backward. Logits are computed for answers alone.

Bytes: frozen weights at 2 (bfloat16) or 4; a factor at 20 (itself, gradient, two moments, moving
average). A layer keeps for its backward pass the inputs of its norms, what the factors read, q, k,
v before and after rotation, the mixed heads, gate, up and silu(gate). With recomputation that is
kept of one layer at a time, with as much for its gradients, and of all others their input alone.
For Qwen2-1.5B in bfloat16 and a batch of 24,576 tokens: 3.1 GB of weights, 2.1 of inputs, 4.0 in
one layer, 0.3 of logits; without recomputation 57 in place of inputs and one layer.

Seconds follow from speeds, all but one assumed: a third of the 989 TFLOP/s that an H200 has in
bfloat16, and of two cores 50 GFLOP/s; 350 with instructions for bfloat16 was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from skipqa.backbones.networks.llama import LlamaConfig, flops
from skipqa.nn.lora import LoraConfig
from skipqa.training.reader.adapter import matrices, num_parameters
from skipqa.training.reader.settings import ReaderSchedule

SPEED = {"cuda": 3.3e14, "cpu": 5e10}  # FLOP/s, assumed
BFLOAT16_SPEED = 3.5e11  # of two cores of an EPYC with AVX-512 BF16, measured on SmolLM2
WEIGHT_BYTES = {"cuda": 2, "cpu": 4}
PROMPT_TOKENS = 200  # of a prompt with its answer, assumed until prompts are written
ANSWER_TOKENS = 4
FACTOR_BYTES = 5 * 4
LOGIT_BYTES = 12  # in float32, its softmax and its gradient


def speed(training: ReaderSchedule, device: str) -> float:
    """FLOP/s"""
    return BFLOAT16_SPEED if training.bfloat16 and device == "cpu" else SPEED[device]


def further_seconds(
    config: LlamaConfig, training: ReaderSchedule, prompts: int, device: str
) -> float:
    """Of training a decoder's own factors: gradients of whole matrices are computed on the way."""
    passed = flops(config, PROMPT_TOKENS, PROMPT_TOKENS, logits=0)
    return prompts * (3 + int(training.recompute)) * passed / speed(training, device)


@dataclass(frozen=True, slots=True)
class Estimate:
    config: LlamaConfig
    lora: LoraConfig
    training: ReaderSchedule
    device: str

    def step_flops(self, prompts: int, tokens: int) -> int:
        """Of a batch of so many prompts, each of so many tokens."""
        config, again = self.config, int(self.training.recompute)
        passed = flops(config, tokens, tokens, logits=0)
        attention = 4 * config.layers * config.width * tokens * tokens
        factors = 2 * num_parameters(config, self.lora) * tokens
        logits = 2 * config.width * config.vocabulary * ANSWER_TOKENS
        # Attention passes two gradients through each of its two products
        layers = (2 + again) * passed + attention + (3 + again) * factors
        return prompts * (layers + 2 * logits)

    def seconds(self, prompts: int, tokens: int = PROMPT_TOKENS) -> float:
        """Of training on so many prompts, each time one is seen counted."""
        return self.step_flops(prompts, tokens) / speed(self.training, self.device)

    @property
    def _bytes(self) -> int:
        """Of a number, but for factors."""
        return 2 if self.training.bfloat16 else WEIGHT_BYTES[self.device]

    @property
    def weight_bytes(self) -> int:
        config = self.config
        layer = config.width * (2 * config.width + 2 * config.kv_width + 3 * config.ffn)
        output = 1 if config.tied else 2
        parameters = config.layers * layer + output * config.width * config.vocabulary
        return self._bytes * parameters

    def layer_bytes(self, tokens: int) -> int:
        """What one layer keeps for its backward pass."""
        c = self.config
        kept = 8 * c.width + 4 * c.kv_width + 3 * c.ffn
        if self.lora.mlp:
            kept += 2 * (c.width + c.ffn)
        return self._bytes * kept * tokens

    @property
    def peak_bytes(self) -> int:
        """With a batch of as many tokens as one may have."""
        c, batch, tokens = self.config, self.training.batch, self.training.most_tokens
        inputs = self._bytes * c.layers * c.width * tokens
        inside = 2 * self.layer_bytes(tokens)
        activations = inputs + inside
        if not self.training.recompute:
            activations = (c.layers + 1) * self.layer_bytes(tokens)
        factors = FACTOR_BYTES * num_parameters(c, self.lora)
        logits = LOGIT_BYTES * batch * (ANSWER_TOKENS + 1) * c.vocabulary
        return self.weight_bytes + factors + activations + logits

    @property
    def size(self) -> str:
        """Of what is trained."""
        count = num_parameters(self.config, self.lora)
        where = f"{len(matrices(self.config, self.lora))} matrices"
        return f"{count / 1e6:.1f}M factors of rank {self.lora.rank} beside {where}"
