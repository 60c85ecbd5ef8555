"""Code in C for what torch's operations cannot do in few enough passes over memory.

It is compiled when it is first needed, and never required: each has its equal in torch.
"""
