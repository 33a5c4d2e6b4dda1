"""Room: text. Tokenizers, chat templates, and text that is shown while it is generated."""
