"""images.yaml -> frozen types -> the matrix of images, and what each lock is asked for.

Enters: the text of images.yaml. Leaves: `Config`, an `ImageSpec` for each image, and a
a request for each lock. Starts no process and opens no connection.
"""
