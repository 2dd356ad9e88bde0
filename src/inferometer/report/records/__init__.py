"""Records from files, as documents see them: gathered, put into columns and sweeps, their phases named."""
