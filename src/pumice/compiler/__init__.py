"""Room: compiler."""
