"""Grammars: what a text must look like, compiled to masks of the tokens that may come next.

    source    Grammar: a JSON schema, a regular expression, a lark grammar or a list of choices, as it was asked for
    width     how many optional properties a schema has at one place, which is bounded
    tokens    a model's vocabulary as the grammar library reads it
    mask      GrammarMask: the sequence.TokenMask of one running choice
    meter     Meter: the time that a request's grammar has taken, and when that is too much
    compiler  GrammarCompiler: Grammar -> masks, with a bounded cache
    guard     GrammarGuard: tries a stranger's grammar in a process of its own, with limits of time and memory

The library is llguidance: an Earley parser over a lexer of regular-expression derivatives, run along a trie of the
vocabulary. A mask costs tens of microseconds to a millisecond.
"""
