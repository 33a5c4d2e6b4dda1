"""embedding: rows of a table, dequantized."""
