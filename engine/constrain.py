"""Grammar-constrained output with llguidance: masks are computed by one thread while other rows go on decoding.

A constrained row takes part in a step only when the mask for its next token is there; with it come the masks after each
token of the row's draft. With a trigger a row is free until the trigger was written: Python is asked only after tokens
that can end the trigger.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from . import _native
from .errors import RequestError
from .types import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_LOG = logging.getLogger(__name__)
_IDLE_WAIT_S = 5.0
_MAX_SCHEMA_CHARS = 65_536  # compiling takes seconds from there on
_RECENT = 32  # output tokens that a question holds at most (kMaxRecent)
_REMEMBERED = 8  # grammars
# One space, or a new line with its indent: without a bound a small model can write white space for ever.
_JSON_WHITESPACE = {"whitespace_pattern": r"(\n {0,16}| )?"}


class _Words:
    """What llguidance wants to know of a tokenizer."""

    def __init__(self, tokens: Sequence[bytes], special: Iterable[int], eos: int, encode: Callable[[str], list[int]]):
        self.tokens = tokens
        self.special_token_ids = sorted(special)
        self.eos_token_id = eos
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


class GrammarFactory:
    """Compiles grammars for one vocabulary. `tokens[i]` are the bytes of id i (b"" for none), one per logit."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        special: Iterable[int],
        eos_ids: Sequence[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self.tokens = tokens
        self._special = frozenset(special)
        self._eos_ids = list(eos_ids)
        self._encode = encode
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._watches: dict[bytes, np.ndarray] = {}  # per trigger
        self._matchers: OrderedDict[str, LLMatcher] = OrderedDict()  # per source, the one used last at the end

    def prepare(self) -> None:
        """Builds the tables of the vocabulary, so that no request waits for them.

        150,000 ids take half a second, which holds the interpreter: best when nothing else is to be done.
        """
        self._llg_tokenizer()

    def compile(self, grammar: Grammar, stop_ids: Iterable[int]) -> GrammarState:
        """A fresh state; raises RequestError, with llguidance's message, for a grammar that is not valid."""
        begun = self._begun(_to_lark(grammar))
        trigger = grammar.trigger.encode()
        watch = self._watch(trigger) if trigger else None
        state = GrammarState(grammar, watch, begun.deep_copy, self.tokens, stop_ids)
        if problem := state.problem or (_first_problem(begun.deep_copy()) if trigger else ""):
            raise RequestError(f"the grammar cannot be used: {problem}")
        return state

    def _begun(self, source: str) -> LLMatcher:
        """A matcher at the beginning, to be copied: the turns of a conversation have the same tools."""
        from llguidance import LLMatcher

        with self._lock:
            if source in self._matchers:
                self._matchers.move_to_end(source)
                return self._matchers[source]
        tokenizer = self._llg_tokenizer()
        if problem := LLMatcher.validate_grammar(source, tokenizer):
            raise RequestError(f"the grammar is not valid: {problem}")
        begun = LLMatcher(tokenizer, source)
        with self._lock:
            self._matchers[source] = begun
            if len(self._matchers) > _REMEMBERED:
                self._matchers.popitem(last=False)
        return begun

    def problem_of(self, schema: Mapping[str, object]) -> str:
        """Why no text can be held to this JSON schema; "" when it can be."""
        from llguidance import LLMatcher

        try:
            source = _to_lark(Grammar("json_schema", json.dumps(schema)))
        except RequestError as error:
            return str(error)
        return LLMatcher.validate_grammar(source, self._llg_tokenizer())

    def _watch(self, trigger: bytes) -> np.ndarray:
        """The ids whose bytes hold the trigger's last one, (ceil(vocab / 32),) uint32."""
        if trigger not in self._watches:
            last = trigger[-1]
            watched = np.fromiter((last in token for token in self.tokens), np.bool_, len(self.tokens))
            self._watches[trigger] = pack_mask(watched)
        return self._watches[trigger]

    def _llg_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        with self._lock:
            if self._tokenizer is None:
                tokens = [t or b"\xff[%d]" % i for i, t in enumerate(self.tokens)]  # an id without text never matches
                empty = [i for i, t in enumerate(self.tokens) if not t]
                eos = self._eos_ids or [len(tokens) - 1]
                words = _Words(tokens, self._special.union(empty, eos), eos[0], self._encode)
                self._tokenizer = LLTokenizer(TokenizerWrapper(words), eos_token=eos)
            return self._tokenizer


class GrammarState:
    """One request's position in its grammar."""

    def __init__(
        self,
        grammar: Grammar,
        watch: np.ndarray | None,
        make_matcher: Callable[[], LLMatcher],
        tokens: Sequence[bytes],
        stop_ids: Iterable[int],
    ) -> None:
        self._trigger = grammar.trigger.encode()
        self._repeats = bool(grammar.trigger) and grammar.repeats
        self._watch = watch
        self._make_matcher = make_matcher
        self._tokens = tokens
        self._stop_ids = sorted(stop_ids)
        self._matcher: LLMatcher | None = None if grammar.trigger else make_matcher()
        self._n_words = (len(tokens) + 31) // 32
        self._n_seen = 0  # output tokens that the matcher knows of
        self._grammar = grammar
        self._earlier: tuple[int, ...] = ()  # the last output of an earlier row of the request
        self.problem = ""  # why the rest of the output could not be held, so that it ends
        self._current: np.ndarray | None = None if grammar.trigger else self._mask()

    def replayed(self, output: Sequence[int]) -> GrammarState:
        """A state of its own for a row that goes on after `output`."""
        again = GrammarState(self._grammar, self._watch, self._make_matcher, self._tokens, self._stop_ids)
        try:
            for n in range(1, len(output) + 1):
                if again._matcher is not None or _in_mask(self._watch, output[n - 1]):
                    again._current = again._after(output[n - 1 : n], output[max(0, n - _RECENT) : n])
        except BaseException as error:  # noqa: BLE001 - see advance
            again._current = again._failed(error)
        again._earlier = tuple(output[-_RECENT:])
        return again

    def start(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(mask of the first token or None, ids to ask after while unmasked or None), (ceil(vocab / 32),) uint32."""
        return self._current, self._watch

    def advance(self, n_generated: int, recent: Sequence[int], draft: Sequence[int] = ()) -> list[np.ndarray]:
        """Masks after the output of `n_generated` tokens that ends with `recent` (newest last).

        The first is for the next token, the others for those after 1, 2, … tokens of `draft`, for as long as the draft
        fits. An empty list allows everything. Never raises: the threads that ask serve all requests.
        """
        try:
            return self._advance(n_generated, recent, draft)
        except BaseException as error:  # noqa: BLE001 - a panic of the library, which is in Rust, is no Exception
            mask = self._failed(error)
            return [] if mask is None else [mask]

    def _advance(self, n_generated: int, recent: Sequence[int], draft: Sequence[int]) -> list[np.ndarray]:
        new = recent[-(n_generated - self._n_seen) :] if n_generated > self._n_seen else ()
        self._n_seen = n_generated
        mask = self._after(new, recent)
        return [] if mask is None else [mask, *self._along(draft)]

    def _after(self, new: Sequence[int], recent: Sequence[int]) -> np.ndarray | None:
        if self.problem:
            return self._only_stops()
        if self._matcher is None:
            rest = self._after_trigger(recent)
            if rest is None:
                return None
            self._matcher = self._make_matcher()
            if rest and not self._consume_bytes(rest):
                return self._let_go("the text after the trigger does not fit the grammar")
        elif not self._matcher.consume_tokens(list(new)):
            return self._let_go(self._matcher.get_error())
        return self._mask()

    def _along(self, draft: Sequence[int]) -> list[np.ndarray]:
        """Masks after each token of the draft; the matcher is left where it was."""
        matcher, masks, n_ahead = self._matcher, list[np.ndarray](), 0
        if matcher is None or not draft:
            return masks
        for token in draft[: matcher.validate_tokens(list(draft))]:
            if token in self._stop_ids or not matcher.consume_token(token):
                break
            n_ahead += 1
            if matcher.is_stopped():
                break
            masks.append(self._allowed(matcher))
        matcher.rollback(n_ahead)
        return masks

    def _mask(self) -> np.ndarray | None:
        assert self._matcher is not None
        if self._matcher.is_stopped():
            return self._let_go("") if self._repeats else self._only_stops()
        mask = self._allowed(self._matcher)
        if self._matcher.is_error():
            return self._let_go(self._matcher.get_error())
        return mask if mask.any() else self._only_stops()

    def _allowed(self, matcher: LLMatcher) -> np.ndarray:
        mask = np.zeros(self._n_words, np.uint32)  # (ceil(vocab / 32),)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return mask | self._stop_mask() if matcher.is_accepting() else mask

    def _only_stops(self) -> np.ndarray | None:
        return self._stop_mask() if self._stop_ids else None

    def _stop_mask(self) -> np.ndarray:
        allowed = np.zeros(len(self._tokens), np.bool_)
        allowed[self._stop_ids] = True
        return pack_mask(allowed)

    def _failed(self, error: BaseException) -> np.ndarray | None:
        """The output ends here, with this problem."""
        _LOG.error("a grammar failed", exc_info=error)
        self._matcher = None
        self.problem = f"{type(error).__name__}: {error}".partition("\n")[0]
        return self._only_stops()

    def _let_go(self, problem: str) -> np.ndarray | None:
        """The row is free again (and watched) where its grammar repeats; otherwise it ends with the problem."""
        self._matcher = None
        if not problem:
            return None
        problem = problem.partition("\n")[0]
        _LOG.warning("a grammar was given up: %s", problem)
        if self._repeats:
            return None
        self.problem = problem
        return self._only_stops()

    def _after_trigger(self, recent: Sequence[int]) -> bytes | None:
        """What the last token wrote behind the trigger, or None when it did not complete one."""
        pieces = [self._tokens[token] for token in (*self._earlier, *recent)[-_RECENT:]]
        text = b"".join(pieces)
        end = text.rfind(self._trigger) + len(self._trigger)
        complete = end >= len(self._trigger) and end > len(text) - len(pieces[-1])
        return text[end:] if complete else None

    def _consume_bytes(self, rest: bytes) -> bool:
        assert self._matcher is not None
        by_bytes = {self._tokens[i]: i for i in range(len(self._tokens)) if len(self._tokens[i]) == 1}
        ids = [by_bytes[rest[i : i + 1]] for i in range(len(rest)) if rest[i : i + 1] in by_bytes]
        return len(ids) == len(rest) and self._matcher.try_consume_tokens(ids) == len(ids)


class MaskWorker:
    """Answers the decode thread's questions. Its thread starts with the first constrained request."""

    def __init__(self, service: _native.DecodeService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._states: dict[int, GrammarState] = {}
        self._thread: threading.Thread | None = None
        self._closing = False

    def add(self, request: int, state: GrammarState) -> None:
        """Makes the state known before the row exists."""
        with self._lock:
            self._states[request] = state
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="engine-masks", daemon=True)
                self._thread.start()

    def add_row(self, request: int, row: int, state: GrammarState) -> None:
        """The same for another row of a request, unless the request has ended meanwhile."""
        with self._lock:
            if request in self._states:
                self._states[row] = state

    def remove(self, request: int) -> None:
        """The request, or the row, has ended."""
        with self._lock:
            self._states.pop(request, None)

    def close(self) -> None:
        """Joins the thread."""
        self._closing = True
        self._service.wake_masks()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            for request, n_generated, recent, draft in self._service.wait_queries(_IDLE_WAIT_S):
                with self._lock:
                    state = self._states.get(request)
                if state is not None:
                    self._service.answer(request, n_generated, state.advance(n_generated, recent, draft))


def _to_lark(grammar: Grammar) -> str:
    """One llguidance grammar; JSON gets bounded white space, and may begin with some after a trigger."""
    if grammar.kind == "lark":
        return grammar.source
    try:
        schema: Any = json.loads(grammar.source)
    except ValueError as error:
        raise RequestError(f"the JSON schema is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise RequestError("the JSON schema must be an object")
    lead = r"/[ \n]{0,4}/ " if grammar.trigger else ""
    return f"start: {lead}value\n{json_rule('value', cast('dict[str, Any]', schema))}\n"


def json_rule(name: str, schema: Mapping[str, Any]) -> str:
    """A Lark rule for JSON of this schema with bounded white space."""
    options: Any = schema.get("x-guidance", {})
    if not isinstance(options, dict):
        raise RequestError("x-guidance in a JSON schema must be an object")
    bounded = {**schema, "x-guidance": {**_JSON_WHITESPACE, **cast("dict[str, Any]", options)}}
    source = json.dumps(bounded)
    if len(source) > _MAX_SCHEMA_CHARS:
        raise RequestError(
            f"a JSON schema of {len(source):,} characters is too large; {_MAX_SCHEMA_CHARS:,} is the most"
        )
    return f"{name}: %json {source}"


def _first_problem(matcher: LLMatcher) -> str:
    """What goes wrong with a grammar's very first token."""
    matcher.compute_bitmask()
    return matcher.get_error().partition("\n")[0] if matcher.is_error() else ""


def _in_mask(mask: np.ndarray | None, token: int) -> bool:
    return mask is not None and bool(mask[token // 32] >> (token % 32) & 1)


def pack_mask(allowed: np.ndarray) -> np.ndarray:
    """(vocab,) bool as (ceil(vocab / 32),) uint32, bit i of word w for id 32 w + i."""
    bits = np.zeros(-(-len(allowed) // 32) * 32, np.bool_)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view(np.uint32)
