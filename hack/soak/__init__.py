"""A long run of LeaderWorkerSets under random trouble, judged by an independent checker; ``docs/soak.md``."""
