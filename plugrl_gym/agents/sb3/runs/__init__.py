"""What a run leaves on disk, and what it counts."""
