{{- /* The cluster that proxies know the store by. */ -}}
{{- define "quotagate.cluster" -}}
{{- if or (eq .Values.filter.kind "EnvoyExtensionPolicy") .Values.filter.tuning.ownCluster -}}
quota_store
{{- else -}}
outbound|9180||{{ include "quotagate.storeHost" . }}
{{- end -}}
{{- end -}}

{{- /* The policy document, with the store's cluster unless it names a cluster or a Redis. */ -}}
{{- define "quotagate.policy" -}}
{{- $policy := deepCopy .Values.policy -}}
{{- $store := dig "store" dict $policy -}}
{{- if not (or $store.cluster $store.redis) -}}
{{- $store = mergeOverwrite (dict "cluster" (include "quotagate.cluster" .)) $store -}}
{{- end -}}
{{- toYaml (mergeOverwrite $policy (dict "store" $store)) -}}
{{- end -}}

{{- /* Envoy's own cluster for the store. */ -}}
{{- define "quotagate.envoyCluster" -}}
name: quota_store
type: STRICT_DNS
connect_timeout: 0.25s
lb_policy: LEAST_REQUEST
# Only connections that fail count against an address. The Service has one, which is never
# ejected: Kubernetes chooses a store that is ready for each new connection.
outlier_detection:
  split_external_local_origin_errors: true
  consecutive_local_origin_failure: 3
  enforcing_consecutive_5xx: 0
  enforcing_local_origin_success_rate: 0
  enforcing_success_rate: 0
  interval: 1s
  base_ejection_time: 5s
  max_ejection_time: 30s
  max_ejection_percent: 50
circuit_breakers:
  thresholds:
    - {max_connections: 256, max_pending_requests: 1024, max_requests: 1024, max_retries: 0}
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
    common_http_protocol_options: {idle_timeout: 30s}
    explicit_http_config:
      http_protocol_options: {}
load_assignment:
  cluster_name: quota_store
  endpoints:
    - lb_endpoints:
        - endpoint:
            address:
              socket_address: {address: {{ include "quotagate.storeHost" . }}, port_value: 9180}
{{- end -}}
