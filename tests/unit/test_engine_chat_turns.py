"""ChatModule: history, templates, what a turn computes, benchmark_generate."""

from __future__ import annotations

import re

import pytest
from engine_toy import (
    ToyExecutable,
    scripted,
)
from engine_toy import (
    plain_tokenizer as tokenizer,
)
from engine_toy import (
    small_limits as limits,
)

from pumice.engine import ChatModule, LLMEngine
from pumice.engine.history import continue_tokens
from pumice.errors import ContextLengthError, DeviceError, UsageError
from pumice.text.chat_template import ChatTemplate
from pumice.text.tokenizer import Tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special=False, parse_special=True)


def chat(answer: str = "the fox jumps", *, spelled: bool = False, **options: object) -> ChatModule:
    """A model that answers the same in every turn; spelled: one byte a token, as nobody encodes."""
    words = tokenizer()
    script = encode(answer)
    if spelled:
        byte_ids = {words.token_bytes(i): i for i in range(words.vocab_size)}
        script = [byte_ids[bytes([b])] for b in answer.encode()]
    script = [*script, encode("<|im_end|>")[0]]
    start = encode("<|im_start|>assistant\n")

    def next_token(tokens: list[int]) -> int:
        at = max((i for i in range(len(tokens)) if tokens[i : i + len(start)] == start), default=0)
        return script[min(max(0, len(tokens) - at - len(start)), len(script) - 1)]

    bounds = limits(vocab_size=words.vocab_size, context_length=256, num_blocks=64)
    executable = ToyExecutable(bounds, scripted(words.vocab_size, next_token))
    engine = LLMEngine(executable, words, name="toy")
    return ChatModule(engine, template=ChatTemplate(CHATML), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("spelled", [False, True])
def test_a_turn_computes_its_own_message_only(spelled: bool) -> None:
    module = chat(spelled=spelled, system="be brief")
    executable = module.engine.executable
    assert isinstance(executable, ToyExecutable)
    assert module.generate("the dog?") == "the fox jumps"
    before = executable.computed
    assert module.generate("and then?") == "the fox jumps"
    answer = 13 if spelled else len(encode("the fox jumps"))
    new = encode("<|im_end|>\n<|im_start|>user\nand then?<|im_end|>\n<|im_start|>assistant\n")
    # One more than the message: the last token of the answer before was made, and not computed.
    assert executable.computed - before <= 1 + len(new) + answer
    assert module.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "the dog?"},
        {"role": "assistant", "content": "the fox jumps"},
        {"role": "user", "content": "and then?"},
        {"role": "assistant", "content": "the fox jumps"},
    ]
    assert module.engine.audit() == []


def test_callback_and_stream() -> None:
    module = chat()
    pieces: list[str] = []
    text = module.generate("the", pieces.append)
    assert text == "".join(pieces) == "the fox jumps" and len(pieces) > 1
    assert "".join(d.text for d in module.stream("the")) == text


def test_messages_replace_the_history() -> None:
    module = chat()
    module.generate("the dog")
    module.generate([{"role": "user", "content": "other"}])
    assert [m["content"] for m in module.messages] == ["other", "the fox jumps"]
    module.reset_chat()
    assert module.messages == []


def test_an_answer_that_was_left_stays_in_the_history() -> None:
    module = chat()
    answer = module.stream("the dog")
    shown = next(answer).text + next(answer).text
    answer.close()
    assert module.messages[-1] == {"role": "assistant", "content": shown}
    assert module.engine.alive == []
    assert module.generate("again") == "the fox jumps"


def test_a_context_that_is_full() -> None:
    module = chat()
    module.generate("the dog")
    history = list(module.messages)
    with pytest.raises(
        ContextLengthError, match=r"no longer fits.*tokens; the context holds 256"
    ) as e:
        module.generate("x?" * 300)
    assert e.value.hint is not None and "reset_chat" in e.value.hint
    assert module.messages == history
    assert module.generate("more") == "the fox jumps"


def test_an_answer_that_failed_leaves_the_history() -> None:
    module = chat()
    executable = module.engine.executable
    assert isinstance(executable, ToyExecutable)
    model = executable.model
    executable.model = lambda tokens: model(tokens) * float("inf")
    with pytest.raises(DeviceError, match="not finite"), pytest.warns(RuntimeWarning):
        module.generate("the dog")
    executable.model = model

    def interrupt(step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    executable.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        module.generate("the dog")
    assert module.messages == []
    executable.before = lambda step: None
    assert module.generate("the dog") == "the fox jumps"
    assert module.engine.audit() == []


def test_benchmark_generate() -> None:
    module = chat()
    module.generate("the dog")
    history = list(module.messages)
    for _ in range(2):
        module.benchmark_generate("the quick brown fox", 40)  # far past the model's end token
        stats = module.stats_dict()
        assert stats["decode_tokens"] == 39
        assert stats["prefill_tokens"] == len(encode("the quick brown fox"))
        assert stats["cached_tokens"] == 0
    assert module.messages == history
    assert re.fullmatch(r"prefill: \d+\.\d tok/s, decode: \d+\.\d tok/s", module.stats())
    assert "0 of 64 blocks in use" in module.stats(verbose=True).splitlines()[-1]
    module.engine.executable.products = "products: Pumice's own kernels"  # type: ignore[attr-defined]
    assert module.stats(verbose=True).endswith("kept\nproducts: Pumice's own kernels")
    for bad in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="generate_length"):
            module.benchmark_generate("the", bad)  # type: ignore[arg-type]
    with pytest.raises(ContextLengthError, match="up to 300 generated"):
        module.benchmark_generate("the", 300)
    assert module.generate("again") == "the fox jumps"


def test_bad_settings_are_told_at_once() -> None:
    with pytest.raises(UsageError, match="top_p is 2"):
        chat(top_p=2)
    with pytest.raises(UsageError, match="heat"):
        chat(heat=2)
    module = chat(max_tokens=2)
    assert module.generate("the dog") in "the fox jumps"
    with pytest.raises(UsageError, match="temperature is -1"):
        module.generate("the dog", temperature=-1)
    engine = LLMEngine(ToyExecutable(limits()), None, name="toy")
    with pytest.raises(UsageError, match="toy has no tokenizer"):
        ChatModule(engine)
    no_template = LLMEngine(module.engine.executable, tokenizer())
    with pytest.raises(UsageError, match="no chat template"):
        ChatModule(no_template).generate("the")


def test_continue_tokens() -> None:
    words: Tokenizer = tokenizer()
    ids = encode("<|im_start|>user\nthe quick brown fox<|im_end|>\n")
    spelled = [i for t in ids[:-2] for i in _spell(words, t)]
    assert continue_tokens(words, ids[:4], ids) == ids
    assert continue_tokens(words, spelled, ids) == spelled + ids[-2:]
    assert continue_tokens(words, [], ids) == ids
    assert continue_tokens(words, [*ids, 5], ids) == ids
    assert continue_tokens(words, spelled[:-1], ids) == ids  # ends within a token
    text = words.encode("<|im_start|>user", add_special=False, parse_special=False)
    assert continue_tokens(words, text, ids) == ids  # a control token is not its text


def _spell(words: Tokenizer, token: int) -> list[int]:
    if token in words.control_ids:
        return [token]
    byte_ids = {words.token_bytes(i): i for i in range(words.vocab_size)}
    return [byte_ids[bytes([b])] for b in words.token_bytes(token)]
