"""A GPU artifact, run through the real driver code on an emulated card, against NumPy."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import gpu_artifact as toy
import numpy as np
import pytest
from safetensors.numpy import save_file

from pumice.artifact import Manifest
from pumice.errors import OutOfMemoryError, UsageError
from pumice.errors import UnsupportedError as Unsupported
from pumice.operators.sample_tokens.spec import reference as sample_reference
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.gpu_executor import GpuExecutor
from pumice.runtime.step import RowSampling

PROMPTS = np.random.default_rng(7).integers(0, toy.VOCABULARY, (4, toy.CONTEXT)).tolist()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("toy")
    toy.write(directory)
    return directory


@pytest.fixture
def executor(artifact: Path) -> GpuExecutor:
    return toy.loaded(artifact)


def check(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert found.dtype == np.float32
    assert np.linalg.norm(found - wanted) <= 1e-3 * np.linalg.norm(wanted)


def poison_cache(executor: GpuExecutor) -> None:
    buffer, stream = executor._cache._buffer, executor._stream
    executor.device.fill(buffer.address, 0xFF, buffer.nbytes, stream)  # NaN in float16
    stream.synchronize()


def test_limits_are_the_widest_plan_s(executor: GpuExecutor) -> None:
    limits = executor.limits
    assert (limits.max_tokens, limits.max_sequences, limits.max_rows) == (8, 3, 3)
    assert (limits.context_length, limits.block_size, limits.hidden_size) == (64, 16, 32)
    assert executor.cache_tokens == limits.num_blocks * 16 == (3 * 4 + 1) * 16
    assert executor.notes == []


def test_prompts_and_decode_alone_and_together(executor: GpuExecutor) -> None:
    poison_cache(executor)
    a, b, c, _ = PROMPTS
    chunk = toy.batch([(a[:5], 0, [3, 9]), (b[:3], 0, [2])])
    assert executor.plan_name(chunk) == "extend@8x3x4"
    check(executor.step(chunk), np.stack([toy.reference(a)[4], toy.reference(b)[2]]))
    # 13 of 18 tokens on: over a block's end, with a decoding sequence beside it
    first = executor.step(toy.batch([(a[5:12], 5, [3])]))
    check(first, toy.reference(a)[11:12])
    mixed = toy.batch([(a[12:18], 12, [3, 9]), (b[3:4], 3, [2])])
    check(executor.step(mixed), np.stack([toy.reference(a)[17], toy.reference(b)[3]]))
    two = toy.batch([(a[18:19], 18, [3, 9]), (b[4:5], 4, [2])])
    assert executor.plan_name(two) == "decode@2x2x4"
    check(executor.step(two), np.stack([toy.reference(a)[18], toy.reference(b)[4]]))
    one = toy.batch([(c[:1], 0, [12])])
    assert executor.plan_name(one) == "decode@2x2x4"
    check(executor.step(one), toy.reference(c)[:1])
    three = toy.batch([(c[1:2], 1, [12]), (a[19:20], 19, [3, 9]), (b[5:6], 5, [2])])
    assert executor.plan_name(three) == "extend@8x3x4"
    check(
        executor.step(three),
        np.stack([toy.reference(c)[1], toy.reference(a)[19], toy.reference(b)[5]]),
    )


def test_what_fills_a_batch_up_writes_nothing(executor: GpuExecutor) -> None:
    poison_cache(executor)
    executor.step(toy.batch([(PROMPTS[0][:3], 0, [1])]))
    shape = (2, executor.limits.num_blocks, toy.BLOCK, toy.WIDTH)
    cache = executor.device.read(executor._cache._buffer.address, shape, np.float16)
    assert np.isfinite(cache[:, 1, :3]).all()
    cache[:, 1, :3] = np.nan
    assert np.isnan(cache).all()


def test_plans_are_captured_before_they_are_needed(executor: GpuExecutor) -> None:
    plans = executor.plans_to_capture()
    assert "extend@8x3x4" in {plan.name for plan in plans}
    for plan in plans:
        executor.capture(plan)
    assert executor.plans_to_capture() == []
    bound = dict(executor._bound)
    a = PROMPTS[0]
    check(executor.step(toy.batch([(a[:5], 0, [0])])), toy.reference(a)[4:5])
    assert executor._bound == bound


def test_a_prompt_s_chunk_without_rows(executor: GpuExecutor) -> None:
    a = PROMPTS[0]
    assert executor.step(toy.batch([(a[:6], 0, [0])], rows=[])).shape == (0, toy.VOCABULARY)
    check(executor.step(toy.batch([(a[6:7], 6, [0])])), toy.reference(a)[6:7])


def test_several_rows_of_a_sequence(executor: GpuExecutor) -> None:
    a = PROMPTS[1]
    check(executor.step(toy.batch([(a[:6], 0, [0])], rows=[5, 0, 2])), toy.reference(a)[[5, 0, 2]])


def test_hidden_states(executor: GpuExecutor) -> None:
    a = PROMPTS[2]
    found = executor.embed(toy.batch([(a[:7], 0, [4])], rows=range(7)))
    check(found, toy.reference(a[:7], "proj"))


def test_another_thread_may_run_a_step(executor: GpuExecutor) -> None:
    results: list[np.ndarray] = []
    thread = threading.Thread(
        target=lambda: results.append(executor.step(toy.batch([(PROMPTS[0][:4], 0, [0])])))
    )
    thread.start()
    thread.join()
    check(results[0], toy.reference(PROMPTS[0])[3:4])


def test_copied_blocks_continue_a_sequence(executor: GpuExecutor) -> None:
    a = PROMPTS[3]
    executor.step(toy.batch([(a[:8], 0, [5])]))
    executor.copy_blocks([(5, 7), (7, 2)])
    executor.step(toy.batch([(PROMPTS[0][:8], 0, [5])]))  # the original is overwritten
    check(executor.step(toy.batch([(a[8:9], 8, [2])])), toy.reference(a)[8:9])


def test_profile_names_every_launch(executor: GpuExecutor) -> None:
    batch = toy.batch([(PROMPTS[0][:4], 0, [0])])
    rows = executor.profile(batch)
    plan = executor.manifest.entries[executor.plan_name(batch)]
    assert [(label, kernel) for label, kernel, _ in rows] == [
        (launch.label, launch.kernel) for launch in plan.launches
    ]
    assert all(seconds >= 0 for _, _, seconds in rows)
    assert sum(seconds for _, _, seconds in rows) > 0


def test_a_batch_that_no_plan_holds(executor: GpuExecutor) -> None:
    with pytest.raises(UsageError, match=r"9 tokens, 1 sequences.*max_tokens=8"):
        executor.step(toy.batch([(PROMPTS[0][:9], 0, [0])]))
    with pytest.raises(UsageError, match="contexts of 5 blocks"):
        executor.step(toy.batch([([1], 64, [0, 1, 2, 3, 4])]))


def test_no_access_that_a_sanitizer_finds(artifact: Path) -> None:
    executor = toy.loaded(artifact, "rocm:sanitized-gfx1100")
    a = PROMPTS[0]
    check(executor.step(toy.batch([(a[:5], 0, [3])])), toy.reference(a)[4:5])
    check(executor.step(toy.batch([(a[5:6], 5, [3])])), toy.reference(a)[5:6])


# Drawing


def sampling(**given: object) -> RowSampling:
    """One row an element of what is given; the rest is off."""
    rows = max(len(value) for value in given.values() if isinstance(value, list))
    kinds = {"seeds": np.int64, "draws": np.int32, "top_k": np.int32}
    arrays = {
        name: np.full(rows, given.get(name, rest), kinds.get(name, np.float32))
        for name, rest in (
            ("temperature", 0), ("seeds", 0), ("draws", 0), ("top_k", 0), ("top_p", 1), ("min_p", 0)
        )
    }  # fmt: skip
    return RowSampling(**arrays)


def drawn(logits: np.ndarray, how: RowSampling) -> np.ndarray:
    """By the operator's reference."""
    inputs = {name: getattr(how, name) for name in vars(how) if name != "draws"}
    return sample_reference({}, {"logits": logits, "positions": how.draws, **inputs})["tokens"]


def test_tokens_are_drawn_on_the_device(executor: GpuExecutor) -> None:
    a, b, c, _ = PROMPTS
    batch = toy.batch([(a[:3], 0, [3]), (b[:3], 0, [2]), (c[:2], 0, [1])])
    how = sampling(
        temperature=[0, 0.8, 1.5], seeds=[1, 2**62 + 5, 3], draws=[3, 4, 5], top_k=[0, 9, 0],
        top_p=[1, 1, 0.8], min_p=[0, 0.01, 0],
    )  # fmt: skip
    step = executor.launch(batch, how)
    logits = step.logits().copy()
    check(logits, np.stack([toy.reference(a)[2], toy.reference(b)[2], toy.reference(c)[1]]))
    wanted = drawn(logits, how)
    assert step.tokens().tolist() == wanted.tolist()
    assert wanted[0] == logits[0].argmax()
    # alone, and in the other plan: the same
    alone = sampling(temperature=[0.8], seeds=[2**62 + 5], draws=[4], top_k=[9], min_p=[0.01])
    assert executor.launch(toy.batch([(b[:3], 0, [2])]), alone).tokens().tolist() == wanted[1:2]


def test_the_next_step_is_launched_before_tokens_are_read(executor: GpuExecutor) -> None:
    a, b, c, _ = PROMPTS
    prompts = [a[:4], b[:3]]
    how = sampling(temperature=[0, 0])
    last = executor.launch(toy.batch([(prompts[0], 0, [3]), (prompts[1], 0, [2])]), how)
    texts = [list(prompt) for prompt in prompts]
    for step in range(4):
        order = (1, 0) if step == 2 else (0, 1)
        parts = [([0], len(texts[i]), [3 - i]) for i in order]
        sources = np.array(order if step != 3 else [1, 0], np.int32)
        following = executor.launch(toy.batch(parts), how, sources)
        tokens = last.tokens().tolist()
        before = (1, 0) if step == 3 else (0, 1)
        for row, i in enumerate(before):
            texts[i].append(tokens[row])
        last = following
    for text, prompt in zip(texts, prompts, strict=True):
        for end in range(len(prompt), len(text)):
            assert text[end] == toy.reference(text[:end])[-1].argmax()
    # a token of the host's beside one of the device's
    mixed = executor.launch(
        toy.batch([(c[:1], 0, [1]), ([0], len(texts[0]), [3])]), how, np.array([-1, 0], np.int32)
    )
    texts[0].append(int(last.tokens()[0]))
    wanted = [toy.reference(text)[-1].argmax() for text in (c[:1], texts[0])]
    assert mixed.tokens().tolist() == wanted


def test_damaged_logits_have_no_token(artifact: Path, tmp_path: Path) -> None:
    directory = toy.altered(artifact, tmp_path)
    arrays = toy.weights()
    arrays["embedding"][5] = np.nan
    save_file(arrays, directory / "weights.safetensors")
    executor = toy.loaded(directory)
    step = executor.launch(
        toy.batch([([1, 2], 0, [1]), ([5], 0, [2])]), sampling(temperature=[0.5, 0.5])
    )
    assert step.tokens().tolist()[1] == -1 and step.tokens().tolist()[0] >= 0


def test_an_artifact_that_cannot_draw(artifact: Path, tmp_path: Path) -> None:
    entries = Manifest.load(artifact / "manifest.json").entries
    kept = {name: plan for name, plan in entries.items() if not name.startswith("sample")}
    executor = toy.loaded(toy.altered(artifact, tmp_path, entries=kept))
    assert not executor.samples
    with pytest.raises(Unsupported, match="no plans that draw"):
        executor.launch(toy.batch([([1], 0, [1])]), sampling(temperature=[0]))


def test_the_cache_shrinks_when_the_device_has_less(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = DriverDevice.allocate

    def small(device: DriverDevice, nbytes: int) -> object:
        if nbytes > 9 * 2 * toy.BLOCK * toy.WIDTH * 2:
            raise OutOfMemoryError("no more")
        return allocate(device, nbytes)

    monkeypatch.setattr(DriverDevice, "allocate", small)
    executor = toy.loaded(artifact)
    assert executor.limits.num_blocks == 9
    assert "144 tokens instead of 176" in executor.notes[-1]
    with pytest.raises(OutOfMemoryError):
        toy.loaded(artifact, num_blocks=12)


def test_the_run_side_needs_no_compiler(artifact: Path) -> None:
    code = f"""
import sys
for name in ("tvm", "tvm_ffi", "triton", "torch"):
    sys.modules[name] = None
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
import numpy as np
from pumice.runtime.load import load
from pumice.runtime.step import StepBatch
executor = load(Path({str(artifact)!r}), device={toy.CARD!r})
ints = lambda *values: np.array(values, np.int32)
batch = StepBatch(ints(1, 2), ints(0, 1), ints(0, 1), ints(0, 2), ints(2), ints(0)[None], ints(1))
print(*executor.step(batch)[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check(np.array([done.stdout.split()], np.float32), toy.reference([1, 2])[1:])
