"""Room: tuning."""
