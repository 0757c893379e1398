ARG IMAGE=torch-cu130:sm120
FROM $IMAGE
COPY doubling.cpp setup.py /tmp/doubling/
RUN pip install --no-cache-dir --no-build-isolation /tmp/doubling && rm -r /tmp/doubling
