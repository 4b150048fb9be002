"""The stages of training by name, each in one line, in their order. Plain text: the command line
shows it before anything heavy is imported; `stages.py` has the stages themselves."""

from __future__ import annotations

SUMMARIES = {
    "splade": "sparse queries",
    "stage1": "the backbone",
    "reader": "the decoder alone: that of desk by LoRA, the pocket's further",
    "cells": "what single tokens show",
    "grounding": "saliency over all tokens together",
    "stage2": "saliency of each token by itself",
    "stage3": "fusion into the decoder",
    "stage4": "verifier",
    "stage5": "budget",
    "stage6": "joint fine-tuning",
    "hop": "bridges of questions in several steps",
    "ocr": "when text in the image is read",
    "fast_path": "the threshold for drafts",
    "confidence": "of answers",
    "all": "one after the other",
}
HELP = "; ".join(f"{name}: {summary}" for name, summary in SUMMARIES.items()) + "."
