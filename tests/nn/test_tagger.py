"""Names for pictures, each judged by itself."""

from __future__ import annotations

import pytest
import torch

from skipqa.nn.tagger import Tagger, TaggerConfig, pool_views

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


def test_views_are_judged_alike_in_any_shape() -> None:
    torch.manual_seed(0)
    tagger = Tagger(CONFIG).eval()
    pooled = torch.randn(2, 3, 4, 10)
    found = tagger.judge(pooled)
    assert found.shape == (2, 3, 4, 2)
    torch.testing.assert_close(found[1, 2, 3], tagger.judge(pooled[1, 2, 3][None])[0])


@pytest.mark.parametrize(("cells", "views"), [(8, 1), (16, 5), (9, 1), (10, 2), (5, 1)])
def test_a_view_is_a_window_of_the_map(cells: int, views: int) -> None:
    """Mean and maximum of 8 x 8 cells, every second one; a smaller map is one view."""
    maps = torch.randn(2, 5, cells, cells, generator=torch.Generator().manual_seed(0))
    found = pool_views(maps, 8)
    assert found.shape == (2, views, views, 10)
    for row in range(views):
        for column in range(views):
            down, across = slice(2 * row, 2 * row + 8), slice(2 * column, 2 * column + 8)
            window = maps[:, :, down, across]
            expected = torch.cat((window.mean((2, 3)), window.amax((2, 3))), dim=1)
            torch.testing.assert_close(found[:, row, column], expected)


def test_the_view_of_a_whole_map_is_the_picture() -> None:
    torch.manual_seed(0)
    tagger = Tagger(CONFIG).eval()
    maps = torch.randn(3, 5, 8, 8)
    whole = tagger(maps.flatten(2).transpose(1, 2))
    torch.testing.assert_close(tagger.judge(pool_views(maps, 8))[:, 0, 0], whole)
