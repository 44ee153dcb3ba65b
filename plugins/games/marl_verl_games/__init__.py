"""Games for teams of agents: Plan-Path, Sokoban, Sudoku, and every generator of reasoning-gym."""
