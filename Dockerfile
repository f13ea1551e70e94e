# Debian and Python with security fixes for years to come, and wheels for every dependency. What is compiled here is the
# hot modules only, in the image that has a C compiler besides.
FROM python:3.13-trixie AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src

# The environment has no pip of its own: this stage's fills it, and compiles all modules to bytecode.
COPY constraints-runtime.txt ./
RUN python -m venv --without-pip /opt/ringproxy \
    && pip --python /opt/ringproxy/bin/python install --require-hashes --only-binary :all: -r constraints-runtime.txt

# What makes the wheel stays behind.
COPY constraints-build.txt ./
RUN pip install --require-hashes --only-binary :all: -r constraints-build.txt

COPY pyproject.toml setup.py README.md LICENSE ./
COPY ring ring
COPY proxy proxy
# The runbook, which the console shows.
COPY docs/how-to/troubleshoot.md docs/how-to/
# Of the wheel; what it imports (Spark) is not in the image.
COPY pipeline pipeline
# With this variable the build compiles the hot modules, or fails. (-I: not the source in this folder.)
RUN RINGPROXY_COMPILE=1 pip wheel --verbose --no-index --no-deps --no-build-isolation --wheel-dir dist . \
    && pip --python /opt/ringproxy/bin/python install --no-index --no-deps dist/*.whl \
    && test "$(/opt/ringproxy/bin/python -I -c 'from ring.compiled import kind; print(kind())')" = compiled


FROM python:3.13-slim-trixie
LABEL org.opencontainers.image.title="ringproxy" \
      org.opencontainers.image.description="A sidecar that routes RabbitMQ publishes over a consistent-hash ring" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.13-slim-trixie"
COPY --from=build /opt/ringproxy /opt/ringproxy
ENV PATH=/opt/ringproxy/bin:$PATH
# By number, so that the kubelet can see it is not root.
USER 65532:65532
STOPSIGNAL SIGTERM
ENTRYPOINT ["ring-proxy"]
CMD ["run"]
