{{- define "quotagate.rateLimit" -}}
{{ include "quotagate.name" . }}-ratelimit
{{- end -}}

{{- /* The labels that select the pods of the rate limit service. */ -}}
{{- define "quotagate.rateLimitSelector" -}}
app.kubernetes.io/name: quotagate-ratelimit
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "quotagate.rateLimitLabels" -}}
{{ include "quotagate.rateLimitSelector" . }}
{{ include "quotagate.commonLabels" . }}
{{- end -}}

{{- define "quotagate.rateLimitImage" -}}
{{- $image := .Values.rateLimit.image -}}
{{- $repository := printf "%s/%s" (include "quotagate.registry" .) $image.repository -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ include "quotagate.tag" . }}
{{- end -}}
{{- end -}}

{{- /* What must fit together. */ -}}
{{- define "quotagate.rateLimitChecks" -}}
{{- $rateLimit := .Values.rateLimit -}}
{{- $store := .Values.store -}}
{{- if $rateLimit.enabled -}}
{{- if not $store.redis.existingSecret -}}
{{- fail (printf "store.redis.existingSecret is empty: the rate limit service counts in the Redis of the store. Create a Secret with its address, and name it: `kubectl -n %s create secret generic %s --from-literal=%s=redis://redis:6379`" .Release.Namespace (include "quotagate.store" .) $store.redis.urlKey) -}}
{{- end -}}
{{- if and $rateLimit.rules $rateLimit.existingConfigMap -}}
{{- fail "rateLimit.rules and rateLimit.existingConfigMap exclude each other: remove one of them" -}}
{{- end -}}
{{- $names := list -}}
{{- range $rateLimit.extraEnv -}}{{- $names = append $names .name -}}{{- end -}}
{{- if not (or $rateLimit.rules $rateLimit.existingConfigMap (has "CONFIG_TYPE" $names)) -}}
{{- fail "rateLimit.rules is empty: every request would pass. Write rule files there, as in `rules: {shop.yaml: {domain: shop, descriptors: [...]}}`, or name a ConfigMap with them in rateLimit.existingConfigMap" -}}
{{- end -}}
{{- if and $store.networkPolicy.enabled (not $store.networkPolicy.callers) -}}
{{- fail "store.networkPolicy.callers is empty: nobody could call the rate limit service. Name the proxies, as in `[{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: istio-ingress}}}]`" -}}
{{- end -}}
{{- end -}}
{{- end -}}
