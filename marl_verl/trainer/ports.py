"""The port on which a policy's training workers find each other.

It is chosen some seconds before anybody listens on it. In between, the kernel gives away ports of its ephemeral range
(`net.ipv4.ip_local_port_range`, 32768 to 60999 by default) to every connection that Ray or vLLM opens, the chosen one
among them. So it is taken from below that range, where nobody gets a port without asking for it.
"""

from __future__ import annotations

import random

FIRST, END = 20_000, 30_000
TRIED = 100


def rendezvous_ports() -> list[int]:
    """[first, end) of the ports to try, in order, on the first worker's node.

    The first is random, whatever the run's seed: runs and policies that start at once must not all choose the same.
    """
    first = random.SystemRandom().randrange(FIRST, END - TRIED)
    return [first, first + TRIED]
