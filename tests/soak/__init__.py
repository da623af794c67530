"""Half an hour of clients that come and go; ``python -m tests.soak`` (``make soak``)."""
