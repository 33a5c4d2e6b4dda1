"""Whole generations on an engine that goes step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any, Literal, overload

from pumice.engine.pooling import Pooling, check_pooling, vector_of
from pumice.engine.request import Completion, Delta, Prompt
from pumice.engine.sampling_params import SamplingParams
from pumice.engine.sequence import SequenceGroup
from pumice.engine.submit import as_prompts
from pumice.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

Params = SamplingParams | SequenceOf[SamplingParams]


class Generation(ABC):
    """`stream` and `generate`, for a class that has requests and steps."""

    _undelivered: list[Delta]  # the next step returns them

    @abstractmethod
    def prepare(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> SequenceGroup: ...

    @abstractmethod
    def submit(self, group: SequenceGroup) -> str: ...

    @abstractmethod
    def cancel(self, request_id: str) -> list[Completion]: ...

    @abstractmethod
    def step(self) -> list[Delta]: ...

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> Generator[Delta, None, None]:
        """One request, delta by delta, checked at once. Closing the generator cancels the request.

        Other requests go on meanwhile; their deltas come with the next `step`.
        """
        return self._run_one(self.prepare(prompt, params, **options))

    def _run_one(self, group: SequenceGroup) -> Generator[Delta, None, None]:
        deltas = self._run([group])
        try:
            for _, delta in deltas:
                yield delta
        finally:
            deltas.close()

    @overload
    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        params: Params | None = None,
        *,
        stream: Literal[False] = False,
        **options: Any,
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        params: Params | None = None,
        *,
        stream: Literal[True],
        **options: Any,
    ) -> Generator[tuple[int, Delta], None, None]: ...

    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        params: Params | None = None,
        *,
        stream: bool = False,
        **options: Any,
    ) -> list[Completion] | Generator[tuple[int, Delta], None, None]:
        """Completes prompts as one batch: texts or lists of token ids, one or several.

        params: for all, or one for each. Returns the completions in the prompts' order (with n > 1,
        those of a prompt one after the other) or, with stream, an iterator of (index of the prompt,
        `Delta`). All prompts are checked before any runs. An exception, or closing the iterator,
        cancels what has not finished.
        """
        several = as_prompts(prompts)
        each: SequenceOf[SamplingParams | None]
        each = (
            [params] * len(several)
            if params is None or isinstance(params, SamplingParams)
            else params
        )
        if len(each) != len(several):
            raise UsageError(f"{len(several)} prompts came with {len(each)} sampling parameters")
        groups = [self.prepare(p, one, **options) for p, one in zip(several, each, strict=True)]
        if stream:
            return self._run(groups)
        done: dict[tuple[int, int], Completion] = {}
        deltas = self._run(groups)
        try:
            for index, delta in deltas:
                if delta.completion is not None:
                    done[index, delta.index] = delta.completion
        finally:
            deltas.close()
        return [done[key] for key in sorted(done)]

    def embed(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        pooling: Pooling = "mean",
        normalize: bool = True,
        **options: Any,
    ) -> list[np.ndarray]:
        """A vector float32[H] for each prompt: texts or lists of token ids, one or several.

        pooling: over the hidden states after the last norm: their mean, or the last token's.
        normalize: to length 1, so that a dot product is the cosine. options: `priority` and
        `deadline_s`. All prompts are checked before any runs, and share the engine with the
        requests that it has.
        UsageError for a bad prompt, ContextLengthError for one that does not fit, UnsupportedError
        when the compiled model has no hidden states, UnavailableError when the deadline came first,
        DeviceError when hidden states are not finite.
        """
        check_pooling(pooling)
        done = self.generate(prompts, pooling=pooling, **options)
        return [vector_of(one, normalize) for one in done]

    def _run(self, groups: list[SequenceGroup]) -> Generator[tuple[int, Delta], None, None]:
        mine: dict[str, int] = {}
        left: dict[str, int] = {}  # outputs that have not finished
        try:
            for index, group in enumerate(groups):
                mine[self.submit(group)] = index
                left[group.request_id] = len(group.open)
            while mine:
                deltas = self.step()
                self._undelivered += [d for d in deltas if d.request_id not in mine]
                for delta in deltas:
                    name = delta.request_id
                    index = mine.get(name, -1)
                    if index >= 0:
                        left[name] -= delta.completion is not None
                        if not left[name]:
                            del mine[name]
                        yield index, delta
        finally:
            for request_id in mine:
                self.cancel(request_id)
