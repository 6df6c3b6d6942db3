"""Makes tests/parity/golden/*.npz: logits of tiny seeded models as transformers computes them.

    python tools/make_parity_golden.py            write the files
    python tools/make_parity_golden.py --check    compute them again and compare with the files; exit 1 on a difference

Needs torch and transformers and nothing of forerun's dependencies but numpy. `make test-parity` runs --check.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.parity.cases import CASES, GOLDEN, SEED, Case, case_tokens, weights_digest  # noqa: E402
from tests.tiny import RandomWeights, hf_config, hf_name  # noqa: E402

TOLERANCE = 1e-5  # float32 on another machine or another version of torch


def transformers_logits(case: Case) -> np.ndarray:
    """[T, V] float32 logits of a case."""
    config = hf_config(case.spec, **case.config_changes)
    kind = getattr(transformers, config["architectures"][0])
    model = kind(kind.config_class.from_dict({**config, "attn_implementation": "eager"})).to(torch.float32).eval()
    weights = RandomWeights(case.spec, SEED)
    state = {hf_name(name): torch.from_numpy(weights.read(name)) for name in case.spec.weight_shapes()}
    result = model.load_state_dict(state, strict=False)
    missing = set(result.missing_keys) - ({"lm_head.weight"} if case.spec.tied_embeddings else set())
    if missing or result.unexpected_keys:
        sys.exit(f"transformers wants other tensors: missing {missing}, unexpected {result.unexpected_keys}")
    with torch.no_grad():
        return model(torch.from_numpy(case_tokens(case))[None]).logits[0].numpy()


def main() -> int:
    """Write or check every case; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing them")
    check = parser.parse_args().check
    failures = 0
    for name, case in CASES.items():
        logits, digest, path = transformers_logits(case), weights_digest(case.spec), GOLDEN / f"{name}.npz"
        if not check:
            GOLDEN.mkdir(exist_ok=True)
            np.savez_compressed(path, logits=logits, weights_sha256=np.array(digest))
            print(f"{name}: {path.stat().st_size} bytes")
            continue
        with np.load(path) as golden:
            same = str(golden["weights_sha256"]) == digest
            difference = float(np.abs(golden["logits"] - logits).max())
        failures += not same or difference > TOLERANCE
        print(f"{name}: largest difference {difference:.1e}{'' if same else ', weights differ'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
