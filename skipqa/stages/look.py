"""look: closer, once the drafter's glance was not enough.

What is retrieved may depend on small things, which a glance misses; where the budget has no closer
look, the glance has to do.
"""

from __future__ import annotations

from PIL import Image

from skipqa.backbones.backbone import Backbone
from skipqa.config import EncodeConfig
from skipqa.trace import StageRecord
from skipqa.types import Budget, VisualTokens


def look(
    image: Image.Image,
    low_res: VisualTokens,
    allowed: Budget,
    backbone: Backbone,
    config: EncodeConfig,
    record: StageRecord,
) -> VisualTokens:
    scales = config.scales if allowed.high_res else config.scales[:1]
    tokens, record.flops = backbone.encode_high_res(image, low_res, scales)
    record.kept, record.dropped = len(tokens), 0
    high_res = f"{tokens.grid} x {tokens.grid} grid"
    record.why = high_res if tokens is not low_res else "no closer than the glance"
    record.result = tokens
    return tokens
