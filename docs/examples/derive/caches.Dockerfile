ARG IMAGE=torch-cu130:sm120
FROM $IMAGE
RUN pip install --no-cache-dir huggingface_hub && install -d -m 1777 /cache
ENV TORCHINDUCTOR_CACHE_DIR=/cache/inductor TRITON_CACHE_DIR=/cache/triton HF_HOME=/cache/huggingface
