"""Results of torch-bench -> report and plots.

Enters: the JSON that torch-bench prints. Leaves: a comparison, Markdown and pictures.
"""
