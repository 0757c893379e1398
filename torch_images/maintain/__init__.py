"""What is old -> gone.

Enters: the cache, the engine and the builder. Leaves: free disk. Removes only what this project
made.
"""
