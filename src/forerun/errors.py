"""Every error forerun raises on purpose, as one tree.

    ForerunError                 something failed                          exit code 1
    ├── UsageError               the caller asked for something impossible exit code 2
    │   ├── RequestError         one request's options (carries `param`)
    │   └── ModelNotFound        no such path, alias or hub id
    ├── GrammarError             a grammar takes more on its way than it may
    ├── ModelFileError           a file is truncated, corrupt or inconsistent
    ├── UnsupportedModel         a sound file of a kind that forerun does not run
    ├── DownloadError            a model could not be fetched
    └── CapacityError            memory or disk is too small

A message is one line: the fact, then the remedy. The command line prints it after "forerun: " without a traceback.
"""


def one_line(error: BaseException) -> str:
    """Any exception as one line of text, with its type."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def is_line_of(line: str, kind: type[BaseException]) -> bool:
    """Was this line made, by one_line, of an error of exactly this type? A choice keeps no more of its error."""
    return line.startswith(f"{kind.__name__}: ")


class ForerunError(Exception):
    """Base of all expected failures."""

    exit_code = 1


class UsageError(ForerunError):
    """The caller asked for something that cannot be done as asked."""

    exit_code = 2


class RequestError(UsageError):
    """One request has an option that cannot be honoured.

    `param` is the option's public name, so that a server can answer 400 naming it; `code` is a word for programs.
    """

    def __init__(self, message: str, *, param: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param, self.code = param, code


class GrammarError(ForerunError):
    """A request's grammar takes more at some place of the text than it may; the request ends there."""


class ModelNotFound(UsageError):
    """The model reference is no file, folder, alias or hub id."""


class ModelFileError(ForerunError):
    """A model file is truncated, corrupt or contradicts itself."""


class UnsupportedModel(ForerunError):
    """The file is sound but holds an architecture, value or format that forerun does not run."""


class DownloadError(ForerunError):
    """Fetching a model failed; nothing half-written is left under its final name."""


class CapacityError(ForerunError):
    """Memory or disk is too small; the message has the numbers."""
