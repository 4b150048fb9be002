"""look: the image at high resolution, if the budget has it.

What to retrieve may depend on small things, which the low-resolution view misses.
"""

from __future__ import annotations

from skipqa.backbones.backbone import Backbone
from skipqa.config import EncodeConfig
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord


class Look:
    def __init__(self, config: EncodeConfig, backbone: Backbone) -> None:
        self.config, self.backbone = config, backbone

    def __call__(self, state: State, record: StageRecord) -> State:
        scales = self.config.scales if state.budget.high_res else self.config.scales[:1]
        tokens, record.flops = self.backbone.encode_high_res(state.image, state.low_res, scales)
        record.kept, record.dropped = len(tokens), 0
        record.why = f"{tokens.grid} x {tokens.grid} grid"
        if tokens is state.low_res:
            record.why = "low resolution is enough"
        return state.add(tokens=tokens)


def build(parts: Parts) -> Look:
    return Look(parts.config.encode, parts.backbone)
