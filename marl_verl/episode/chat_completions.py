"""`marl_verl_agents.chat_completions` under its name before 0.1 was split."""

from marl_verl_agents.chat_completions import read, response, server_sent, stream, usage

__all__ = ["read", "response", "server_sent", "stream", "usage"]
