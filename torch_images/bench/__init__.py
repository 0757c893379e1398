"""Results of torch-bench -> report and plots.

Enters: the JSON that torch-bench writes. Leaves: a comparison, Markdown and plots.
"""
