"""What clients may ask for and this server cannot do, with the sentence that says so.

Everything else that a schema does not know is refused as unknown; these are refused for a reason.
"""

REFUSED_OPTIONS = {
    "best_of": "every choice is returned: ask for n choices and pick one",
    "use_beam_search": "there is no beam search: ask for n sampled choices",
    "beam_width": "there is no beam search: ask for n sampled choices",
    "length_penalty": "there is no beam search that it could steer",
    "lora": "there are no LoRA adapters: merge the adapter into the model file",
    "audio": "the model speaks text only",
    "modalities": 'the model speaks text only: leave it out or pass ["text"]',
    "functions": "it was replaced by tools",
    "function_call": "it was replaced by tool_choice",
    "web_search_options": "this server does not search the web",
    "moderation": "this server does not moderate",
    "reasoning": "the model has no such setting",
    "verbosity": "the model has no such setting: say in a message how long the answer should be",
    "reasoning_effort": "the model has no such setting",
    "prompt_cache_retention": "cached prefixes stay as long as there is room for them",
    "prompt_cache_options": "prefixes are cached by themselves; cache_salt separates them",
    "prompt_logprobs": "ask /v1/completions with echo and logprobs",
    "previous_response_id": "responses are not stored: pass the whole conversation as input",
    "conversation": "conversations are not stored: pass the whole conversation as input",
    "background_options": "responses are not stored, so nobody could fetch one later",
    "context_management": "the conversation is taken as it is: shorten it yourself",
    "max_tool_calls": "this server calls no tools by itself",
    "prompt": "stored prompt templates belong to OpenAI's platform: pass input",
}

# Options that are right elsewhere, by path.
REFUSED_AT = {
    "/v1/chat/completions": {"prompt": "a chat is read from messages: pass those, or ask /v1/completions"},
    "/detokenize": {"prompt": "it turns token ids into text: pass tokens", "text": "pass tokens, or ask /tokenize"},
}

# Values of an option that has others, by (option, what is asked).
REFUSED_VALUES = {
    "store": "answers are not stored: pass false or leave it out",
    "service_tier": 'there is one tier: pass "auto" or "default" or leave it out',
    "modalities": REFUSED_OPTIONS["modalities"],
    "background": "responses are not stored, so nobody could fetch one later: pass false or leave it out",
    "truncation": 'a conversation is never shortened: pass "disabled" or leave it out',
    "tools": "tools are for /v1/chat/completions",
    "include_obfuscation": "streams are not padded",
}

REFUSED_PARTS = {
    "image_url": "images",
    "input_image": "images",
    "input_audio": "audio",
    "file": "files",
    "input_file": "files",
    "video_url": "videos",
    "refusal": "refusals",
}

# Items of an input that are neither messages nor reasoning.
REFUSED_ITEMS = {"item_reference": "responses are not stored: pass the item itself"}


def unsupported_item(kind: str) -> str | None:
    """The sentence about a kind of input item, None for one that is read or that nobody knows."""
    return REFUSED_VALUES["tools"] if kind.endswith(("_call", "_call_output")) else REFUSED_ITEMS.get(kind)


def unsupported_tool(kind: str) -> str:
    """The sentence about a tool that is no function."""
    return f"functions are the only tools here, and {kind[:40]!r} is none"


def unsupported_part(kind: str) -> str | None:
    """The sentence about a kind of content, None for one that nobody knows."""
    return f"the model reads text only, no {REFUSED_PARTS[kind]}" if kind in REFUSED_PARTS else None
