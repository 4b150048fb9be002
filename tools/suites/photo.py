"""A picture drawn here, for clients that send one: an orange ball on a lawn under a blue sky."""

from __future__ import annotations

import base64
from io import BytesIO

from PIL import Image, ImageDraw

SIZE = (320, 240)


def photo(form: str = "PNG") -> bytes:
    image = Image.new("RGB", SIZE, (120, 170, 230))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 150, *SIZE), fill=(70, 140, 60))
    draw.ellipse((110, 90, 210, 190), fill=(240, 130, 20), outline=(120, 60, 10), width=4)
    file = BytesIO()
    image.save(file, form)
    return file.getvalue()


def data_url(form: str = "PNG", said: str = "") -> str:
    """`said` is the type that the URL names, which some clients get wrong."""
    kind = said or form.lower()
    return f"data:image/{kind};base64,{base64.b64encode(photo(form)).decode()}"
