"""Real PyTorch through the compile stages: Debian's source of 2.6.0, with CUDA 12.4.

The fork's own repository cannot be reached everywhere. This tree can: it is in Debian. Only here
are a tree, a compiler and a published wheel of one release all to be had from package archives, so
only here can a compiled wheel be compared with the published one.
"""
