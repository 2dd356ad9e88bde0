"""Studies as TOML: their parts, tables and plots, and the folder that a run of one writes. The package's own lie in `shipped/`."""
