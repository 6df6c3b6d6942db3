"""Drafters. Importing this package registers the built-in ones; others register themselves from anywhere."""

from forerun.speculation.drafter import register
from forerun.speculation.drafters.ngram import NgramDrafter

# What "auto" means may grow with every drafter that needs nothing but the target; today that is the n-gram drafter.
register("auto", NgramDrafter)

__all__ = ["NgramDrafter"]
