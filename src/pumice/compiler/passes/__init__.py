"""Room: compiler/passes."""
