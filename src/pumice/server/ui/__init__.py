"""The web page: static files that the server serves itself, as they are in `static/`."""
