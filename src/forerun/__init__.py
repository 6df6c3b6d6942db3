"""forerun: lossless speculative decoding over an exact, paged KV cache."""

__version__ = "0.1.0"
