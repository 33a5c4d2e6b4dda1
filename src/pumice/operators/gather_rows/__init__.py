"""A choice of rows."""
