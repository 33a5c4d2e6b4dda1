"""One file a protocol: its fields to a job, and a job's events to its answers."""

ROUTERS = (
    "pumice.server.protocols.status:make_router",
    "pumice.server.protocols.tokens:make_router",
    "pumice.server.protocols.openai_models:make_router",
    "pumice.server.protocols.openai_chat:make_router",
    "pumice.server.protocols.openai_completions:make_router",
    "pumice.server.protocols.openai_responses:make_router",
    "pumice.server.protocols.openai_embeddings:make_router",
    "pumice.server.protocols.anthropic_messages:make_router",
    "pumice.server.protocols.ollama:make_router",
    "pumice.server.protocols.ollama_models:make_router",
    "pumice.server.ui.routes:make_router",
)
