"""Drafters. Importing this package registers the built-in ones; others register themselves from anywhere."""

from forerun.speculation.drafters.draft_model import ModelDrafter
from forerun.speculation.drafters.lookahead import LookaheadDrafter
from forerun.speculation.drafters.ngram import NgramDrafter
from forerun.speculation.drafters.recycle import RecycleDrafter
from forerun.speculation.drafters.suffix import SuffixDrafter

AUTO = ("ngram",)  # what "auto" is made of: drafters that need nothing but the target

__all__ = ["AUTO", "LookaheadDrafter", "ModelDrafter", "NgramDrafter", "RecycleDrafter", "SuffixDrafter"]
