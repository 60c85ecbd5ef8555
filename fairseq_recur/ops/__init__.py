"""Functions on tensors: torch only, no parameters, no fairseq.

Each has a reference written as loops in `ops.naive`, which only tests import.
Shapes use the same letters everywhere: ``B`` batch, ``S`` source length, ``T`` target
length, ``C`` model width, ``H`` heads, ``D`` width of a head, ``R`` recurrence steps, ``L`` lags
of a kernel, ``N`` chains (directions) of a recurrent network.
"""
