"""How a model runs: sweeps over a batch, sampling, the offline interface."""
