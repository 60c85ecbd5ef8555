"""Functions on tensors: torch only, no parameters, no fairseq.

Each function has a reference written as loops in `ops.naive`, which only tests import.
Shapes use the same letters everywhere: ``B`` batch, ``S`` source length, ``T`` target
length, ``C`` model width, ``H`` heads, ``D`` head width, ``R`` recurrence steps, ``L`` number of
lags in a kernel. In self-attention ``T`` counts the queries and ``S`` the keys.
"""
