"""Counter-based noise: the randomness of a token depends on (key, absolute position, token id) and on nothing else.

A draw is argmax over tokens of log weight + gumbel(key, position, token), which is an exact sample of the weights. Any
single value can be computed alone, in any order, so neither speculation nor batching nor a restart can shift it.

    counter (position, token >> 1, domain, step), key -> Philox4x32-10 -> words x0 x1 x2 x3
    even token: bits = the upper 52 of x0:x1        odd token: bits = the upper 52 of x2:x3
    u = (bits + 1/2) / 2**52, in (0, 1)             G = -log(-log1p(-u))

Domains keep apart what must be independent. What the target draws with (and coupled drafts share) has domain and step
0. Verification by rejection decides with numbers of DECISIONS, drafts that are drawn for it use DRAFTS; both name their
step by the position that its first token takes, since a position can be drafted and judged again in a later step, and
must not see the same noise then. A step that fails and is retried has the same position, so it repeats.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox4x32-10; Gumbel-max trick.
"""

import hashlib
import secrets

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]

TARGET, DECISIONS, DRAFTS = 0, 1, 2  # domains

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # added to the key between rounds
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


def random_seed() -> int:
    """A fresh seed for a request that names none; returned with its result so that it can be repeated.

    It has 53 bits: a client that reads JSON's numbers as floats gets it back as it is.
    """
    return secrets.randbits(53)


def make_key(seed: int, choice: int) -> tuple[int, int]:
    """Noise key of one choice of a request: two 32-bit words, a hash of any Python int and the choice's index."""
    digest = hashlib.blake2b(f"{seed},{choice}".encode(), digest_size=8, person=b"forerun.noise").digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def philox(counter: tuple[npt.ArrayLike, ...], key: tuple[int, int]) -> tuple[UInt64, UInt64, UInt64, UInt64]:
    """Philox4x32-10 of four 32-bit counter words (scalars or arrays, broadcast); the result's words are in uint64."""
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in counter))
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _WORD) ^ c1 ^ np.uint64(k0),
            product1 & _LOW,
            (product0 >> _WORD) ^ c3 ^ np.uint64(k1),
            product0 & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + _KEY_STEPS[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def uniform(
    key: tuple[int, int], position: int, tokens: npt.ArrayLike, domain: int = TARGET, step: int = 0
) -> npt.NDArray[np.float64]:
    """Uniform numbers in the open interval (0, 1) of `tokens` [n] at an absolute position: [n] float64, exact."""
    ids = np.asarray(tokens, np.uint64)
    x0, x1, x2, x3 = philox((position, ids >> np.uint64(1), domain, step), key)
    odd = (ids & np.uint64(1)).astype(bool)
    high, low = np.where(odd, x2, x0), np.where(odd, x3, x1)
    bits = (high << np.uint64(20)) | (low >> np.uint64(12))
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def gumbel(
    key: tuple[int, int], position: int, tokens: npt.ArrayLike, domain: int = TARGET, step: int = 0
) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise of `tokens` [n] at the absolute position that the drawn token will take: [n] float64."""
    return -np.log(-np.log1p(-uniform(key, position, tokens, domain, step)))
