"""Kills, cuts and full disks over a training run of real processes, and a check of what is left.

Every env step tells who took it, in its observation, and is written down where the env is; the
server writes down every transition that its agent was handed. A checker joins both lists: each
transition must have happened, once, with its own action, reward and next observation.

``python -m tests.chaos --minutes 10`` (``make chaos``) runs it for long; test_chaos.py for seconds.
"""
