"""Frames over a pipe: what goes in comes out, and what is no frame is the end."""

from __future__ import annotations

import asyncio
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.serve import frames
from skipqa.serve.frames import Frame

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values),
    max_leaves=8,
)
FRAME = st.builds(Frame, st.dictionaries(st.text(max_size=9), JSON, max_size=4), st.binary())


@given(st.lists(FRAME, max_size=4))
def test_every_frame_arrives_as_it_was_sent(sent: list[Frame]) -> None:
    stream = io.BytesIO(b"".join(map(frames.packed, sent)))
    assert [frames.read(stream) for _ in sent] == sent
    with pytest.raises(EOFError):
        frames.read(stream)


@given(FRAME, st.integers(0, 40))
def test_a_frame_that_is_cut_is_the_end(frame: Frame, missing: int) -> None:
    whole = frames.packed(frame)
    cut = whole[: max(0, len(whole) - 1 - missing)]
    with pytest.raises(EOFError):
        frames.read(io.BytesIO(cut))


@given(st.lists(FRAME, max_size=3))
def test_asyncio_reads_the_same(sent: list[Frame]) -> None:
    async def received() -> list[Frame]:
        stream = asyncio.StreamReader()
        stream.feed_data(b"".join(map(frames.packed, sent)))
        stream.feed_eof()
        found = [await frames.receive(stream) for _ in sent]
        with pytest.raises(EOFError):
            await frames.receive(stream)
        return found

    assert asyncio.run(received()) == sent


def test_a_length_that_no_frame_has_is_not_waited_for() -> None:
    with pytest.raises(EOFError, match="no frame"):
        frames.read(io.BytesIO(b"\xff" * 64))
