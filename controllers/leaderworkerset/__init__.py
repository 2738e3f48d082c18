"""LeaderWorkerSet: groups of pods, each a leader with its workers, that start, fail and are updated as one."""
