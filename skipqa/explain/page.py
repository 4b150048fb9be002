"""The trace as one self-contained HTML page, with the full text of every passage.

Other pages show several traces with the same `parts` and `style`.
"""

from __future__ import annotations

import base64
import io
from html import escape
from importlib.resources import files
from string import Template

from PIL import Image

from skipqa.answer import Answer
from skipqa.backbones.concepts import Concepts
from skipqa.explain.overlay import overlay, region_colour
from skipqa.outline import asked_as
from skipqa.types import RetrievedPassage

PHOTO_WIDTH = 720


def render(answer: Answer, concepts: Concepts) -> str:
    fields = parts(answer, concepts, PHOTO_WIDTH)
    return Template(_file("page.html")).substitute(fields, style=style())


def parts(answer: Answer, concepts: Concepts, photo_width: int) -> dict[str, str]:
    """What a page shows of one answer, each as HTML; `style()` is made for it."""
    trace = answer.trace
    return {
        "question": escape(answer.state.text),
        "answer": escape(answer.text),
        "route": escape("; ".join(filter(None, (_route(answer), _asked_as(answer, concepts))))),
        "photo": data_uri(overlay(answer.state, photo_width)),
        "regions": _regions(answer, concepts),
        "passages": _passages(answer),
        "stages": _stages(answer),
        "latency": f"{trace.latency_ms:.0f}",
        "gflops": f"{trace.flops / 1e9:.1f}",
    }


def style() -> str:
    """Colours and shapes, for light and dark screens."""
    return _file("page.css")


def _file(name: str) -> str:
    return files("skipqa.explain").joinpath(name).read_text(encoding="utf-8")


def _route(answer: Answer) -> str:
    if answer.route == "draft":
        return f"answered by the drafter; {answer.certainty}"
    kept = len(answer.state.kept.positions)
    return f"looked up; {kept} of {answer.num_tokens} tokens kept; {answer.certainty}"


def _asked_as(answer: Answer, concepts: Concepts) -> str:
    asked = asked_as(answer.state, concepts)
    return f'as "{asked}"' if asked else ""


def data_uri(image: Image.Image) -> str:
    """The image itself, for a page that comes without other files."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _chip(region: int) -> str:
    colour = "#{:02x}{:02x}{:02x}".format(*region_colour(region))
    return f'<span class="chip" style="background:{colour}">{region + 1}</span>'


def _regions(answer: Answer, concepts: Concepts) -> str:
    if "regions" not in answer.state:
        return ""
    items = []
    for number, region in enumerate(answer.state.regions):
        shown = ", ".join(
            f"{escape(concepts[c].name)} {prob:.2f}" for c, prob in region.concepts[:3]
        )
        said = ", ".join(f"“{escape(text)}”" for text in answer.state.text_read.in_region(number))
        tokens = f"<small>{len(region.members)} tokens</small>"
        items.append(f"<li>{_chip(number)} {shown} {said and f'says {said} '}{tokens}</li>")
    return "\n".join(items)


def _passages(answer: Answer) -> str:
    if "verified" not in answer.state:
        return ""
    verified = answer.state.verified

    def row(found: RetrievedPassage, score: float, verdict: str) -> str:
        return (
            f'<tr class="{verdict}"><td>{_chip(found.region)}</td><td>{score:.2f}</td>'
            f"<td>{verdict}</td><td><b>{escape(found.passage.title)}</b><br>"
            f"{escape(found.passage.text)}<br><small>{escape(found.passage.id)}, retrieval score "
            f"{found.score:.2f}</small></td></tr>"
        )

    kept = zip(verified.passages, verified.scores, strict=True)
    rows = [row(found, score, "kept") for found, score in kept]
    rows += [row(found, score, "rejected") for found, score in verified.rejected]
    return "\n".join(rows)


def _stages(answer: Answer) -> str:
    longest = max(stage.ms for stage in answer.trace.stages) or 1.0
    rows = []
    for s in answer.trace.stages:
        kept, dropped = ("" if n is None else str(n) for n in (s.kept, s.dropped))
        rows.append(
            f"<tr><td>{s.name}</td><td>{kept}</td><td>{dropped}</td>"
            f'<td><span class="bar" style="width:{100 * s.ms / longest:.0f}px"></span>{s.ms:.0f}'
            f"</td><td>{s.flops / 1e9:.2f}</td><td>{escape(s.why)}</td></tr>"
        )
    return "\n".join(rows)
