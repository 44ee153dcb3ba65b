"""Episodes on disk: written by a run, read and replayed without one."""

from marl_verl.journals.read import EpisodeFile, StoredEpisode, StoredFailure
from marl_verl.journals.rerun import Rerun, rerun
from marl_verl.journals.write import header, sample_lines

__all__ = ["EpisodeFile", "Rerun", "StoredEpisode", "StoredFailure", "header", "rerun", "sample_lines"]
