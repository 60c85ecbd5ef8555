"""Functions on tensors: torch only, no parameters, no fairseq.

What a paper defines has a reference written as loops in `ops.naive`, which nothing in the package
imports. Tests compare each function with it, or, where a function is a step of something larger,
what is made of it. Helpers that only arrange tensors are tested by themselves.
Shapes use the same letters everywhere: ``B`` batch, ``S`` source length, ``T`` target
length, ``C`` model width, ``H`` heads, ``D`` head width, ``M`` segments, or positions in a memory,
``R`` recurrence steps, ``L`` number of lags in a kernel, or of positions where queries and keys are
the same ones. Elsewhere in self-attention ``T`` counts the queries and ``S`` the keys. A letter
that stands for something else in one function is explained there.
"""
