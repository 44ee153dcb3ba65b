"""MAGRPO: agents that act simultaneously for several turns, one joint reward, a joint tree."""
