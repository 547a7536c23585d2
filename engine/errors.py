"""The engine's exception tree.

EngineError
├── ModelError            a model's files are missing, damaged, or of an unknown kind
│   ├── UnknownModel      nothing on this machine or in the registry has that name
│   └── DownloadError     fetching a model failed; the message says what to do
├── ScheduleError         `check` refused a schedule; names the task
├── RequestError          a request that cannot be served as it is (bad parameter)
│   └── ContextOverflow   the prompt is longer than the context; carries both numbers
├── CapacityError         no pages or queue places left; worth retrying
└── BackendError          the decode backend failed; the engine restarts it
    └── BackendUnavailable  this machine or build cannot run the backend that was asked for
"""


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose."""


class ModelError(EngineError):
    """A model's files are missing, damaged, or of a kind this engine does not know."""


class UnknownModel(ModelError):
    """No model has that name."""


class DownloadError(ModelError):
    """Fetching a model failed."""


class ScheduleError(EngineError):
    """A schedule that must not run; the message names the task."""


class RequestError(EngineError):
    """A request that cannot be served as it is."""


class ContextOverflow(RequestError):
    """The prompt is longer than the context; 0 stands for a number that is not known."""

    def __init__(self, message: str, *, prompt_tokens: int = 0, context_tokens: int = 0) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class CapacityError(EngineError):
    """Nothing free to serve the request now; it may work later."""


class BackendError(EngineError):
    """The decode backend failed."""


class BackendUnavailable(BackendError):
    """This machine or build cannot run the backend that was asked for."""
