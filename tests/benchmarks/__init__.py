"""Programs that measure; what they found is in RESULTS.md. No test is timed.

Each program runs any part of its table alone, keeps a record of each run and goes on where it was
interrupted; ``--table`` writes its section of RESULTS.md from the records.
"""
