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

{{- /* What makes an Envoy leave out a store that counts no calls. */ -}}
{{- define "quotagate.healthChecks" -}}
health_checks:
  # Without a host, Envoy would send the cluster's name. In a mesh, that name has characters that an
  # Envoy in front of the store rejects in a Host header.
  - http_health_check: {path: /healthz, host: quotagate}
    interval: 1s
    no_traffic_interval: 1s
    timeout: 0.25s
    unhealthy_threshold: 2
    healthy_threshold: 1
{{- end -}}

{{- /* Ejects a store whose calls time out. */ -}}
{{- define "quotagate.failurePercentage" -}}
failure_percentage_threshold: 30
failure_percentage_minimum_hosts: 1
failure_percentage_request_volume: 5
enforcing_failure_percentage_local_origin: 100
enforcing_failure_percentage: 0
{{- end -}}

{{- /* Whether a policy reads bodies, which the smaller Wasm filter refuses. */ -}}
{{- define "quotagate.readsBodies" -}}
{{- $reads := false -}}
{{- range (.Values.policy | default dict).policies -}}
{{- $cost := dig "cost" 1 . -}}
{{- if kindIs "map" $cost -}}
{{- $reserve := dig "reserve" 1 $cost -}}
{{- $reads = or $reads (and (kindIs "map" $reserve) (hasKey $reserve "request_json")) -}}
{{- range $cost.settle -}}
{{- $reads = or $reads (hasKey . "usage") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $reads -}}
{{- end -}}

{{- /* Whether the policies read claims of verified tokens. */ -}}
{{- define "quotagate.readsClaims" -}}
{{- if regexMatch `"jwt":` (toJson .Values.policy) -}}true{{- end -}}
{{- end -}}

{{- /* Envoy's own cluster for the store. */ -}}
{{- define "quotagate.envoyCluster" -}}
name: quota_store
type: STRICT_DNS
# (!) Otherwise a proxy listens only after DNS has answered: with a DNS server that is silent, after
# a minute and a half.
wait_for_warm_on_init: false
connect_timeout: 0.25s
lb_policy: LEAST_REQUEST
# Every pod of the headless Service is an address here. Envoy asks each of them every second
# whether it counts calls, and leaves out one that says no, or twice does not answer. The
# comments are in quota_store_several.yaml.
{{ include "quotagate.healthChecks" . }}
common_lb_config:
  healthy_panic_threshold: {value: 1}
outlier_detection:
  split_external_local_origin_errors: true
  consecutive_local_origin_failure: 3
  {{- include "quotagate.failurePercentage" . | nindent 2 }}
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


{{- /* Faults of the policy document that its schema cannot say. `quotagate check` finds them all. */ -}}
{{- define "quotagate.policyChecks" -}}
{{- $known := concat (list "method" "host" "path" "route") (keys (.Values.policy.identities | default dict)) -}}
{{- $names := list -}}
{{- range $index, $policy := .Values.policy.policies -}}
{{- if has $policy.name $names -}}
{{- fail (printf "policy.policies[%d].name: %s is the name of an earlier policy. Give each its own" $index $policy.name) -}}
{{- end -}}
{{- $names = append $names $policy.name -}}
{{- range $policy.partition_by -}}
{{- if not (has . $known) -}}
{{- fail (printf "policy.policies[%d].partition_by: there is no identity %s. Add it to policy.identities, or name one of %s" $index . (join ", " (sortAlpha $known))) -}}
{{- end -}}
{{- end -}}
{{- if and (kindIs "string" $policy.window) (regexMatch "^(0+[a-z]+)+$" $policy.window) -}}
{{- fail (printf "policy.policies[%d].window is %s: write for example 1m" $index $policy.window) -}}
{{- end -}}
{{- end -}}
{{- end -}}
