"""Games for teams of agents: Plan-Path, Sokoban, Sudoku, and every generator of reasoning-gym."""

__version__ = "0.1.0"
