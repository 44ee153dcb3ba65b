"""The overrides of a verl script, trained as a team: `python -m marl_verl.main_ppo key=value ...`."""
