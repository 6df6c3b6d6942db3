"""prediction drafter: the request says what the answer may turn out to be, as an edited file is mostly the old one.

    prediction   def area ( r ) : return 3.14 * r * r
    output       def area ( radius ) : return
                              ^ replaced   ^^^^^^^^^^ found again: the draft is what follows, 3.14 * ...

While the output follows the prediction, the draft is its continuation. Where it leaves it, the place is searched where
the prediction goes on as the output ends, by the longest run of tokens, up to MAX_RUN, then by the nearest behind the
place that was left. Until one is found, the draft is what follows if one token was replaced. Scores grow with the run
that agrees. Behind the whole prediction the draft is the end.

It drafts for requests with a prediction, whatever else was chosen to draft.
Options: min_run=2 (tokens that must agree, but for the next WINDOW of them, where one is enough).
Cost: a few dictionary entries a token. Memory: about 100 bytes a token of the prediction.
Source: predicted outputs of OpenAI's API, whose method is not published; speculation by reference (LLMA, Yang et al.,
arXiv:2304.04487).
"""

from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from forerun.errors import UsageError
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Seen, register
from forerun.speculation.tree import DraftTree

MAX_RUN = 16  # tokens that are compared
MAX_PLACES = 64  # of one run that are compared
WINDOW = 16  # tokens behind the place that was left, in which one token that agrees is enough
FIRST_SCORE = 0.8  # of the prediction's beginning
REPLACED_SCORE = 0.3  # when one token may have been replaced


@dataclass
class _Place:
    """How far the output of one sequence has come in its prediction.

    at     index of the token that is predicted to come next
    run    tokens before it that agree
    runs   places behind each run of min_run tokens, ascending
    """

    prediction: tuple[int, ...]
    runs: dict[tuple[int, ...], list[int]]
    at: int = 0
    run: int = 0
    num_seen: int = 0
    output: list[int] = field(default_factory=list)


class PredictionDrafter:
    """Drafts from the prediction that a request brought along."""

    name = "prediction"
    is_paid = False
    learns = False

    def __init__(self, min_run: int = 2) -> None:
        if not 1 <= min_run <= MAX_RUN:
            raise UsageError(f"prediction drafter: min_run must be between 1 and {MAX_RUN}, got {min_run}")
        self._min_run = min_run
        self._places: dict[int, _Place] = {}

    def begin(self, sequence: Sequence) -> None:
        prediction = sequence.request.prediction
        if prediction:
            self._places[sequence.id] = _Place(prediction, _runs_of(prediction, self._min_run))

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return [self._propose(ask) for ask in asks]

    def observe(self, seen: Seq[Seen]) -> None:
        """Nothing to learn: the tokens say it all."""

    def end(self, sequence_id: int) -> None:
        self._places.pop(sequence_id, None)

    def _propose(self, ask: Ask) -> DraftTree | None:
        place = self._places.get(ask.sequence.id)
        length = min(ask.max_nodes, ask.max_depth)
        if place is None or length < 1:
            return None
        self._catch_up(place, ask.sequence)
        draft = list(place.prediction[place.at : place.at + length])
        if len(draft) < length and place.run and not ask.sequence.params.ignore_eos:
            draft += ask.sequence.request.eos_ids[:1]
        if not draft:
            return None
        score = [_score(place, depth) for depth in range(len(draft))]
        return DraftTree.chain(ask.sequence.tokens[-1], draft, score, self.name)

    def _catch_up(self, place: _Place, sequence: Sequence) -> None:
        first = sequence.num_prompt + place.num_seen
        for token in sequence.tokens[first:]:
            place.output.append(token)
            if place.at < len(place.prediction) and place.prediction[place.at] == token:
                place.at, place.run = place.at + 1, place.run + 1
            else:
                self._search(place)
        place.num_seen = sequence.num_output

    def _search(self, place: _Place) -> None:
        """Find the place behind the output's last tokens; if there is none, take the last one as a replacement."""
        output, prediction = place.output, place.prediction
        best = (0, 0, 0)  # tokens that agree, minus the way, place
        for at in _near(place.runs.get(tuple(output[-self._min_run :]), ()), place.at):
            best = max(best, (_agreement(prediction, at, output), -_way(place.at, at), at))
        if best[0]:
            place.run, _, place.at = best
            return
        window = prediction[place.at : place.at + WINDOW]
        if output[-1] in window:
            place.at, place.run = place.at + window.index(output[-1]) + 1, 1
        else:
            place.at, place.run = place.at + 1, 0


def _runs_of(prediction: Seq[int], length: int) -> dict[tuple[int, ...], list[int]]:
    runs: dict[tuple[int, ...], list[int]] = {}
    for end in range(length, len(prediction) + 1):
        runs.setdefault(tuple(prediction[end - length : end]), []).append(end)
    return runs


def _near(places: Seq[int], at: int) -> Seq[int]:
    """At most MAX_PLACES of the places, those around `at`."""
    first = max(0, bisect_left(places, at) - MAX_PLACES // 4)
    return places[first : first + MAX_PLACES]


def _agreement(prediction: Seq[int], at: int, output: Seq[int]) -> int:
    """Tokens, at most MAX_RUN, that agree before a place of the prediction and at the end of the output."""
    run = 0
    while run < min(at, len(output), MAX_RUN) and prediction[at - 1 - run] == output[-1 - run]:
        run += 1
    return run


def _way(left: int, at: int) -> int:
    """From the place that was left; going back counts more, because edits keep the order of a text."""
    return at - left if at >= left else 4 * (left - at)


def _score(place: _Place, depth: int) -> float:
    if place.run == 0:
        first = FIRST_SCORE if not place.output else REPLACED_SCORE
        return first if depth == 0 else min(0.98, (depth + 2) / (depth + 3))
    run = place.run + depth
    return min(0.98, (run + 1) / (run + 2))


register("prediction", PredictionDrafter)
