"""Room: compiler/pipelines."""
