"""A measured question and its answer: cases, backends, the interleaved runner, the correctness check, and records."""
