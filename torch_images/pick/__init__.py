"""A GPU and a driver -> the image to run.

Enters: their names, and the ledger. Leaves: the best image with the reason, and the answers for all
GPUs. Starts no process and opens no connection.
"""
