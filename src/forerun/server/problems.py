"""What is wrong with a body, from the validation's list of complaints: the option, a sentence and a code."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

from forerun.server.errors import ApiError, spelled
from forerun.server.schema.refused import REFUSED_AT, REFUSED_OPTIONS

_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "unsupported_value": "unsupported_value",
    "unsupported_content": "unsupported_content",
}

_KINDS = {
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
    "list_type": "a list",
}


def refusal(problems: Seq[Mapping[str, Any]], body: Any, path: str = "") -> ApiError:
    """The answer to a body that does not fit its schema.

    The first option at fault is named. An option that may have several forms is at fault once for each of them; of
    these that the model cannot read it tells most, then the one that came furthest into the body, then one about a
    value and not its type, and of those that it is empty.

    path  of the endpoint, for what is right elsewhere
    """
    refused = REFUSED_OPTIONS | REFUSED_AT.get(path, {})
    placed = [(_place(problem, body), problem) for problem in problems]
    options = [place[:1] for place, _ in placed]
    of_first = [pair for pair, option in zip(placed, options, strict=True) if option == options[0]]
    place, problem = max(of_first, key=lambda pair: _telling(*pair))
    param = _spell(place) or None
    return ApiError(400, _sentence(problem, place, param, refused), param=param, code=_code(problem, place, refused))


def _telling(place: Seq[str | int], problem: Mapping[str, Any]) -> tuple[bool, bool, int, bool, bool]:
    """How much a complaint tells: more than others those that were made for what this server lacks."""
    kind = problem["type"]
    is_ours = kind.startswith("unsupported_")
    return is_ours, kind in _CODES, len(place), not kind.endswith("_type"), _is_empty(problem)


def _place(problem: Mapping[str, Any], body: Any) -> tuple[str | int, ...]:
    """Where in the body, without the names of the schema's alternatives."""
    place: list[str | int] = []
    parts = [part for part in problem["loc"] if part != "body"]
    if parts[-1:] == ["[key]"]:  # a map's key is at fault, which is no place of its own
        parts = parts[:-2]
    for part in parts:
        is_last = part is parts[-1]
        if isinstance(body, dict) and isinstance(part, str):
            if part in body or (is_last and problem["type"] == "missing"):
                place.append(part)
                body = body.get(part)
        elif isinstance(body, list) and isinstance(part, int) and part < len(body):
            place.append(part)
            body = body[part]
    if not place and parts and body is None:  # parameters outside of the body
        place = parts[-1:]
    if not place and "param" in problem.get("ctx", {}):  # about the body as a whole: it says itself what is at fault
        place = [problem["ctx"]["param"]]
    return tuple(place)


def _spell(place: Seq[str | int]) -> str:
    names = (f"[{part}]" if isinstance(part, int) else f".{part or repr(part)}" for part in place)
    return spelled("".join(names).removeprefix("."))


def _is_refused(problem: Mapping[str, Any], place: Seq[str | int], refused: Mapping[str, str]) -> bool:
    return problem["type"] == "extra_forbidden" and len(place) == 1 and place[0] in refused


def _is_empty(problem: Mapping[str, Any]) -> bool:
    return bool(problem["type"] == "too_short" and problem["ctx"]["actual_length"] == 0)


def _sentence(problem: Mapping[str, Any], place: Seq[str | int], param: str | None, refused: Mapping[str, str]) -> str:
    what = param or "the body"
    if _is_refused(problem, place, refused):
        return f"{what} cannot be honoured: {refused[str(place[0])]}"
    if _is_empty(problem):
        return f"{what} must not be empty"
    if problem["type"] == "extra_forbidden":
        return f"{what} is not an option here: leave it out"
    if problem["type"] == "missing":
        return f"{what} is required"
    if problem["type"] == "string_pattern_mismatch" and problem["loc"][-1] == "[key]":
        return f'{what}: its keys must be token ids, such as "42"'
    if problem["type"] in _KINDS:
        return f"{what} must be {_KINDS[problem['type']]}"
    if problem["type"] in _CODES:
        return f"{what} cannot be honoured: {problem['msg']}"
    return f"{what}: {problem['msg'][:1].lower()}{problem['msg'][1:]}"


def _code(problem: Mapping[str, Any], place: Seq[str | int], refused: Mapping[str, str]) -> str:
    if _is_refused(problem, place, refused):
        return "unsupported_parameter"
    return _CODES.get(problem["type"], "invalid_value")
