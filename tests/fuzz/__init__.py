"""A million frames that no honest peer would send; ``python -m tests.fuzz`` (``make fuzz``).

Most are read in memory, by both ends of the protocol in every state; the rest go to a live server
over sockets, beside a well-behaved client that must not notice. What is found goes into
tests/golden/hostile.hex, and is then part of every test run.
"""
