"""Room: measurements of models and of the machine that they run on."""
