"""Parts of a model's text as an assistant's message: whole, or as the deltas of a stream."""

from collections.abc import Sequence as Seq
from typing import Any

from forerun.results import Choice
from forerun.server.parsing import Part, ToolCallPart


def message_of(parts: Seq[Part]) -> dict[str, Any]:
    """The whole message."""
    reasoning = "".join(part.reasoning for part in parts)
    calls = _whole_calls([part.tool_call for part in parts if part.tool_call is not None])
    content = "".join(part.content for part in parts)
    message: dict[str, Any] = {"role": "assistant", "content": content or None if calls else content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def deltas_of(parts: Seq[Part]) -> list[dict[str, Any]]:
    """The parts as deltas, in order; neighbours of one kind are joined."""
    deltas: list[dict[str, Any]] = []
    for part in parts:
        if part.tool_call is not None:
            deltas.append({"tool_calls": [_call_delta(part.tool_call)]})
            continue
        key, text = ("reasoning_content", part.reasoning) if part.reasoning else ("content", part.content)
        if deltas and key in deltas[-1]:
            deltas[-1][key] += text
        elif text:
            deltas.append({key: text})
    return deltas


def finish_reason(choice: Choice, has_calls: bool) -> str:
    """Why the choice ended, as chat says it: a model that stopped after calling tools waits for their results."""
    reason = choice.finish_reason.value
    return "tool_calls" if has_calls and reason == "stop" else reason


def _whole_calls(pieces: Seq[ToolCallPart]) -> list[dict[str, Any]]:
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        call = calls.setdefault(piece.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] += piece.id
        call["function"]["name"] += piece.name
        call["function"]["arguments"] += piece.arguments
    return [calls[index] for index in sorted(calls)]


def _call_delta(piece: ToolCallPart) -> dict[str, Any]:
    if piece.id or piece.name:
        function = {"name": piece.name, "arguments": piece.arguments}
        return {"index": piece.index, "id": piece.id, "type": "function", "function": function}
    return {"index": piece.index, "function": {"arguments": piece.arguments}}
