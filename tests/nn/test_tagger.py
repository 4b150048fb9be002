"""Names for pictures, each judged by itself."""

from __future__ import annotations

import torch

from skipqa.nn.tagger import Tagger, TaggerConfig

CONFIG = TaggerConfig(("cup", "mali"), ("", "flag"), width=5, hidden=8, text_width=4)


def test_words() -> None:
    assert [CONFIG.word(i) for i in range(2)] == ["cup", "flag of mali"]


def test_places_do_not_matter() -> None:
    torch.manual_seed(0)
    tagger = Tagger(CONFIG).eval()
    features = torch.randn(3, 9, 5)
    torch.testing.assert_close(tagger(features), tagger(features[:, torch.randperm(9)]))


def test_a_picture_is_judged_alone() -> None:
    torch.manual_seed(0)
    tagger = Tagger(CONFIG).eval()
    features = torch.randn(3, 9, 5)
    torch.testing.assert_close(tagger(features)[1:2], tagger(features[1:2]))
