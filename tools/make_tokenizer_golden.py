"""Makes tests/text/golden/sentencepiece.json: a tiny SentencePiece vocabulary and what SentencePiece itself encodes.

Run with the `sentencepiece` package installed:  python tools/make_tokenizer_golden.py
The vocabulary is of the Llama 2 kind: BPE, byte fallback, a space put in front, no normalisation.
"""

import io
import json
from pathlib import Path

import sentencepiece

GOLDEN = Path(__file__).parent.parent / "tests" / "text" / "golden"


def main() -> None:
    texts = json.loads((GOLDEN / "awkward.json").read_text(encoding="utf-8"))
    corpus = Path(__file__).read_text(encoding="utf-8").splitlines()  # this file: words and code worth merging
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus + [line for text in texts for line in text.splitlines()]),
        model_writer=model,
        model_type="bpe",
        vocab_size=600,
        character_coverage=0.98,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(pieces.get_piece_size())
    golden = {
        "source": f"sentencepiece {sentencepiece.__version__}, trained by tools/make_tokenizer_golden.py",
        "tokens": [pieces.id_to_piece(i) for i in ids],
        "scores": [pieces.get_score(i) for i in ids],
        "types": [
            2 if pieces.is_unknown(i) else 3 if pieces.is_control(i) else 6 if pieces.is_byte(i) else 1 for i in ids
        ],
        "cases": [{"text": text, "ids": pieces.encode(text)} for text in texts],
    }
    path = GOLDEN / "sentencepiece.json"
    path.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print(f"wrote {path}: {len(golden['tokens'])} tokens, {len(texts)} texts")


if __name__ == "__main__":
    main()
