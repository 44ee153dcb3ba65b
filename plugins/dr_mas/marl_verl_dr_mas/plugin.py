"""What this distribution registers. Everything is lazy: listing plugins imports none of it."""

from __future__ import annotations

from marl_verl.hookspecs import Register, hookimpl


@hookimpl
def marl_register_tasks(register: Register) -> None:
    register("second-guess", "marl_verl_dr_mas.second_guess:SecondGuessTasks")
    register("dr-mas-math", "marl_verl_dr_mas.mathematics:MathTasks")
    register("dr-mas-search", "marl_verl_dr_mas.search:SearchTasks")


@hookimpl
def marl_register_workflows(register: Register) -> None:
    register("second-guess", "marl_verl_dr_mas.second_guess:SecondGuess")
    register("dr-mas-math", "marl_verl_dr_mas.mathematics:MathSolverVerifier")
    register("dr-mas-search", "marl_verl_dr_mas.search:SearchTeam")
    register("dr-mas-search-alone", "marl_verl_dr_mas.search:SearchAlone")


@hookimpl
def marl_register_rewards(register: Register) -> None:
    register("second-guess-verdict", "marl_verl_dr_mas.second_guess:second_guess_verdict")


@hookimpl
def marl_register_mixes(register: Register) -> None:
    register("penalty", "marl_verl_dr_mas.algorithm:PenaltyMix")


@hookimpl
def marl_register_metrics(register: Register) -> None:
    register("amplification", "marl_verl_dr_mas.amplification:Amplification")
    register("second-moment", "marl_verl_dr_mas.amplification:SecondMoment")


@hookimpl
def marl_register_algorithms(register: Register) -> None:
    register("dr-mas", "marl_verl_dr_mas.algorithm:DR_MAS")
