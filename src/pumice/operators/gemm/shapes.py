"""Linear layers of real models, for benchmarks: label, features out (N), features in (K)."""

MODEL_LINEARS: tuple[tuple[str, int, int], ...] = (
    ("Llama-2-7B qkv", 12288, 4096),
    ("Llama-2-7B o", 4096, 4096),
    ("Llama-2-7B gate_up", 22016, 4096),
    ("Llama-2-7B down", 4096, 11008),
    ("Llama-2-13B qkv", 15360, 5120),
    ("Llama-2-13B down", 5120, 13824),
    ("Llama-3-8B qkv", 6144, 4096),
    ("Llama-3-8B gate_up", 28672, 4096),
    ("Llama-3-8B down", 4096, 14336),
    ("Llama-3-70B qkv", 10240, 8192),
    ("Llama-3-70B down", 8192, 28672),
    ("Qwen3-0.6B qkv", 4096, 1024),
    ("Qwen3-8B down", 4096, 12288),
    ("Qwen3-32B qkv", 10240, 5120),
)
# Projections that DeepSeek-V3 ships in 8-bit floats with 128 × 128 block scales.
DEEPSEEK_LINEARS: tuple[tuple[str, int, int], ...] = (
    ("DeepSeek-V3 q_a+kv_a", 2112, 7168),
    ("DeepSeek-V3 q_b", 24576, 1536),
    ("DeepSeek-V3 kv_b", 32768, 512),
    ("DeepSeek-V3 o", 7168, 16384),
    ("DeepSeek-V3 gate_up dense", 36864, 7168),
    ("DeepSeek-V3 down dense", 7168, 18432),
    ("DeepSeek-V3 gate_up expert", 4096, 7168),
    ("DeepSeek-V3 down expert", 7168, 2048),
)
