"""What a transformer is: its spec, its parameters, the families that read it and the models known by name."""
