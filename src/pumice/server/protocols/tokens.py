"""`/tokenize` and `/detokenize`, as vLLM has them."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from pumice.server.body import json_router
from pumice.server.context import ServerContext
from pumice.server.errors import bad_request
from pumice.server.protocols.fields import Fields, check_model
from pumice.server.protocols.openai_messages import ChatMessage, messages_of
from pumice.server.protocols.openai_tools import ToolDefinition, tools_of


class TokenizeRequest(Fields):
    """A text (`prompt`) or a conversation (`messages`)."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[ToolDefinition] | None = None
    add_special_tokens: bool = Field(True, description="What begins a text (BOS).")
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(Fields):
    model: str | None = None
    tokens: list[int]


def make_router(context: ServerContext) -> APIRouter:
    router = json_router(context, "tokens")

    @router.post("/tokenize", summary="Token ids of a text or a conversation.")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        check_model(context, body.model)
        ids = await asyncio.to_thread(_tokenize, context, body)
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": context.room, "tokens": ids}
        if body.return_token_strs:
            strings = [context.tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids]
            answer["token_strs"] = strings
        return answer

    @router.post("/detokenize", summary="The text of token ids.")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        check_model(context, body.model)
        vocabulary = context.engine.engine.limits.vocab_size
        for token in body.tokens:
            if not 0 <= token < vocabulary:
                raise bad_request(f"tokens holds {token}; allowed: 0 to {vocabulary - 1}", "tokens")
        text = await asyncio.to_thread(context.tokenizer.decode, body.tokens, False)
        return {"prompt": text}

    return router


def _tokenize(context: ServerContext, body: TokenizeRequest) -> list[int]:
    from pumice.text.prompt import encode_chat

    tokenizer = context.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("give either prompt or messages", "prompt")
    if body.messages is None:
        assert body.prompt is not None
        if len(body.prompt) > context.settings.max_prompt_chars:
            raise bad_request("the prompt is too long", "prompt")
        ids = tokenizer.encode(body.prompt, add_special=False, parse_special=False)
        return tokenizer.with_prefix(ids) if body.add_special_tokens else ids
    if context.template is None:
        raise bad_request(f"{context.name} has no chat template", "messages")
    return encode_chat(
        tokenizer,
        context.template,
        messages_of(context, body.messages),
        tools_of(context, body.tools, None, None).shown or None,
        body.add_generation_prompt,
        **(body.chat_template_kwargs or {}),
    )
