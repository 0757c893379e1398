ARG IMAGE=torch-cu130:sm120
FROM $IMAGE
RUN python -m venv --system-site-packages /opt/mine && /opt/mine/bin/pip install --no-cache-dir einops
ENV PATH="/opt/mine/bin:$PATH" VIRTUAL_ENV=/opt/mine
