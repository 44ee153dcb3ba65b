"""An advantage: returns, group, baseline and scale, composed."""

from marl_verl.advantage import Advantage

from my_method.baseline import Median
from my_method.group import SAME_ACT
from my_method.returns import Sooner
from my_method.scale import Distance

ADVANTAGE = Advantage(returns=Sooner(), group=SAME_ACT, baseline=Median(), std=Distance(), singleton="zero")
"""A = (R - median) / (mean |R - mean| + eps), over an agent's n-th acts in the sessions of one task."""
