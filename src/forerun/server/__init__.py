"""The OpenAI-compatible server: HTTP on an event loop, the engine on a thread of its own.

A request's way: routes -> schema (what may be asked) -> async_engine -> Engine, and back: updates -> parsing (text into
parts of a message) -> answer bodies or an event stream.
"""
