"""Games for teams of agents: Plan-Path, Sokoban, Sudoku, and every generator of reasoning-gym."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("reasoning-gym", "marl_verl_games.reasoning_gym:ReasoningGym")
    registry.task("plan-path", "marl_verl_games.plan_path:PlanPath")
    registry.task("plan-path-tiny", "marl_verl_games.tiny_plan_path:TinyPlanPath")
    registry.task("sokoban", "marl_verl_games.sokoban:SokobanTasks")
    registry.task("sudoku", "marl_verl_games.sudoku:SudokuTasks")
    registry.task("cover", "marl_verl_games.cover:Cover")
    registry.task("crew", "marl_verl_games.crew:Crew")
    registry.workflow("crew", "marl_verl_games.crew:Spawner")
    registry.workflow("cover", "marl_verl_games.cover:CoverTogether")
    registry.workflow("game-tool-caller-planner", "marl_verl_games.game_workflows:ToolCallerPlanner")
    registry.workflow("game-player", "marl_verl_games.game_workflows:GamePlayer")
    registry.workflow("plan-path-tiny", "marl_verl_games.tiny_plan_path:PlannerExecutor")
    registry.workflow("plan-path-tiny-alone", "marl_verl_games.tiny_plan_path:OneWalker")
    for game in ("plan-path", "sokoban", "sudoku"):
        registry.reward(game, "marl_verl_games.game_workflows:game")
        registry.reward(f"{game}-program", "marl_verl_games.game_workflows:program")
