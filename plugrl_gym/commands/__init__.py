"""What the three commands ``serve``, ``rollout`` and ``train`` share; nothing else knows it."""
