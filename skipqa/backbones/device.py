"""Where the networks of `pocket` run: on the CPU, or where SKIPQA_DEVICE says.

Only the networks move. What they find comes back to the CPU, where every stage works: a question's
own tensors are small. An environment variable rather than a setting, since answers do not depend on
it, and since worker processes inherit it.
"""

from __future__ import annotations

import os

import torch

from skipqa.errors import UserError

VARIABLE = "SKIPQA_DEVICE"


def chosen_device() -> torch.device:
    name = os.environ.get(VARIABLE) or "cpu"
    try:
        device = torch.device(name)
        torch.zeros(0, device=device)
    except (RuntimeError, AssertionError) as error:  # no such name, no driver, no such GPU
        reason = str(error).splitlines()[0]
        raise UserError(f"{VARIABLE}={name}: there is no such device ({reason})") from None
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # ten bits of a feature are too few to agree on
    return device
