"""Chat templates: a conversation to the text that a model was trained on.

Templates are Jinja, as in Hugging Face's tokenizer_config.json and GGUF's
tokenizer.chat_template; rendering follows Transformers' `apply_chat_template`. Jinja is imported
at the first template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pumice.errors import ModelFileError, PumiceError, UsageError

if TYPE_CHECKING:
    from pumice.text.tokenizer import Tokenizer

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template. May be used by several threads at once."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """
        source: Jinja. special_tokens: `bos_token`, `eos_token`, … → text, which the template may
        write. ModelFileError when the template is not well formed.
        """
        import jinja2

        from pumice.text import budget
        from pumice.text.sandbox import make_environment

        budget.start()  # Jinja computes constants while it compiles
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = make_environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFileError(
                f"the chat template is not well formed: line {error.lineno}: {error.message}",
                hint=_RAW,
            ) from None
        except (RecursionError, MemoryError, SyntaxError, budget.BudgetError) as error:
            raise ModelFileError(
                f"the chat template cannot be compiled: {error}", hint=_RAW
            ) from None

    @staticmethod
    def of(tokenizer: Tokenizer) -> ChatTemplate:
        """The template that a tokenizer carries; UsageError when it carries none."""
        if tokenizer.chat_template is None:
            raise UsageError(
                "the model has no chat template, so it may not be made for conversations",
                hint=_RAW,
            )
        return ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The conversation's text.

        messages: objects with `role` and `content`. tools: functions as JSON schemas.
        add_generation_prompt: end with the beginning of the model's answer. kwargs: further
        variables (`enable_thinking`, …). UsageError when the template refuses the messages or
        fails on them, ModelFileError when it goes beyond a bound.
        """
        import jinja2

        from pumice.text import budget

        _check(messages)
        variables: dict[str, Any] = {
            "documents": None,
            **self._special_tokens,
            "messages": list(messages),
            "tools": None if not tools else list(tools),
            "add_generation_prompt": add_generation_prompt,
            **kwargs,
        }
        budget.start()
        try:
            return self._template.render(variables)
        except budget.BudgetError as error:
            raise ModelFileError(f"the chat template {error}", hint=_RAW) from None
        except OverflowError as error:  # the sandbox's own bound on range()
            raise ModelFileError(
                f"the chat template goes beyond a bound: {error}", hint=_RAW
            ) from None
        except RecursionError:
            raise ModelFileError("the chat template calls itself without end", hint=_RAW) from None
        except jinja2.TemplateError as error:
            raise UsageError(
                f"the chat template does not take these messages: {error.message}", hint=_ROLES
            ) from None
        except PumiceError:
            raise
        except Exception as error:  # the template's own mistake, of any kind
            raise UsageError(
                f"the chat template failed on these messages: {type(error).__name__}: {error}",
                hint=_RAW,
            ) from None


_RAW = "Use --raw to complete plain text without a template."
_ROLES = f"Check the messages' roles and their order. {_RAW}"


def _check(messages: Sequence[Message]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UsageError(
                f"message {index} is {message!r:.80}; an object with role and content is expected"
            )
