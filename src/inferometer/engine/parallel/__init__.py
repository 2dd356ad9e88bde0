"""Several ranks that run one model: what they say to each other."""
