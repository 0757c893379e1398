"""torch-images: reproducible CUDA PyTorch container images from one matrix file.

Importing this package imports nothing else: `torch_images.arch` also runs inside images, where
none of the pipeline's dependencies are installed.
"""
