# The data pipeline for Spark on Kubernetes: the Python packages of constraints-pipeline.txt, of which pyspark is Spark
# itself, and this project with its hot modules compiled. Driver and executors are the same image.
FROM python:3.13-trixie AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src

# Of pyspark there is no wheel: it is packed here, by a setuptools that pip fetches for it and that no hash pins.
COPY constraints-pipeline.txt ./
RUN python -m venv --without-pip /opt/ringproxy \
    && pip --python /opt/ringproxy/bin/python install --require-hashes --only-binary :all: --no-binary pyspark \
       -r constraints-pipeline.txt

COPY constraints-build.txt ./
RUN pip install --require-hashes --only-binary :all: -r constraints-build.txt

COPY pyproject.toml setup.py README.md LICENSE ./
COPY ring ring
COPY proxy proxy
# The runbook, which the console of a sidecar shows.
COPY docs/how-to/troubleshoot.md docs/how-to/
COPY pipeline pipeline
RUN RINGPROXY_COMPILE=1 pip wheel --verbose --no-index --no-deps --no-build-isolation --wheel-dir dist . \
    && pip --python /opt/ringproxy/bin/python install --no-index --no-deps dist/*.whl \
    && test "$(/opt/ringproxy/bin/python -I -c 'from ring.compiled import kind; print(kind())')" = compiled


# For its entrypoint.sh, which the package pyspark lacks.
FROM apache/spark:4.3.0-scala2.13-java21-ubuntu AS spark


FROM python:3.13-slim-trixie
LABEL org.opencontainers.image.title="ringproxy-pipeline" \
      org.opencontainers.image.description="ringproxy's data pipeline for Spark on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.13-slim-trixie"
COPY --from=spark /opt/java/openjdk /opt/java/openjdk
COPY --from=spark /usr/bin/tini /usr/bin/tini
COPY --from=spark /opt/entrypoint.sh /opt/entrypoint.sh
COPY --from=build /opt/ringproxy /opt/ringproxy
ENV JAVA_HOME=/opt/java/openjdk \
    SPARK_HOME=/opt/ringproxy/lib/python3.13/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/ringproxy/bin/python \
    PATH=/opt/ringproxy/bin:$PATH
# Hadoop asks for the user's name, so a number is not enough.
RUN groupadd --gid 65532 spark && useradd --uid 65532 --gid 65532 --create-home spark
WORKDIR /home/spark
USER 65532:65532
ENTRYPOINT ["/opt/entrypoint.sh"]
