# Envoy with both forms of the filter, from the archive of a release beside this file:
#
#   docker build --file envoy.Dockerfile --tag quotagate-envoy:local .
#   docker build --file envoy.Dockerfile --tag quotagate-envoy:local --build-arg ARCHITECTURE=aarch64 .
#
# Mount your configuration at /etc/envoy/envoy.yaml. It names the Wasm filter as dist/quotagate.wasm,
# and the native module as quotagate.

FROM envoyproxy/envoy:v1.40.0
ARG VERSION=0.1.0
ARG ARCHITECTURE=x86_64
ADD quotagate-${VERSION}-linux-${ARCHITECTURE}.tar.gz /opt/
RUN ln -s "quotagate-$VERSION" /opt/quotagate \
 && ln -s /opt/quotagate/wasm /dist && ln -s /opt/quotagate/bin/quotagate /usr/local/bin/quotagate
WORKDIR /
ENV ENVOY_DYNAMIC_MODULES_SEARCH_PATH=/opt/quotagate/lib
EXPOSE 10000
USER envoy
HEALTHCHECK --interval=2s --timeout=2s --start-period=10s --retries=15 CMD ["quotagate", "health", "http://127.0.0.1:9901/ready"]
ENTRYPOINT ["envoy"]
CMD ["--config-path", "/etc/envoy/envoy.yaml"]
