from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="doubling",
    version="1.0",
    ext_modules=[CppExtension("doubling", ["doubling.cpp"])],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)},
)
