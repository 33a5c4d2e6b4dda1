"""Room: runtime/devices."""
