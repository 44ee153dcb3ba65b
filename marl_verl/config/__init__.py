"""Config: verl's Hydra config, extended by the typed `marl` section."""
