"""Generation in no protocol's words: a job comes in, events of its choices come out."""
