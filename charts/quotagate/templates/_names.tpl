{{- /* What the names of all objects begin with. The checks refuse one that is too long: names cut
off could be those of another release. */ -}}
{{- define "quotagate.name" -}}
{{- .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-quotagate" .Release.Name) (contains "quotagate" .Release.Name)) -}}
{{- end -}}

{{- /* The address families of a Service. */ -}}
{{- define "quotagate.ipFamilies" -}}
{{- with .Values.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.ipFamilies }}
ipFamilies:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "quotagate.store" -}}
{{ include "quotagate.name" . }}-store
{{- end -}}

{{- define "quotagate.storeHost" -}}
{{ include "quotagate.store" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- /* The labels that select the pods of the store. */ -}}
{{- define "quotagate.storeSelector" -}}
app.kubernetes.io/name: quotagate-store
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "quotagate.storeLabels" -}}
{{ include "quotagate.storeSelector" . }}
{{ include "quotagate.commonLabels" . }}
{{- end -}}

{{- define "quotagate.controller" -}}
{{ include "quotagate.name" . }}-controller
{{- end -}}

{{- define "quotagate.controllerSelector" -}}
app.kubernetes.io/name: quotagate-controller
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "quotagate.controllerLabels" -}}
{{ include "quotagate.controllerSelector" . }}
{{ include "quotagate.commonLabels" . }}
{{- end -}}

{{- define "quotagate.filterLabels" -}}
app.kubernetes.io/name: quotagate
app.kubernetes.io/instance: {{ .Release.Name }}
{{ include "quotagate.commonLabels" . }}
{{- end -}}

{{- define "quotagate.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* With an autoscaler, the number of stores that run. (!) Without any number, an upgrade that
switches the autoscaler on would make Kubernetes set its default of one. */ -}}
{{- define "quotagate.replicas" -}}
{{- $autoscaling := .Values.store.autoscaling -}}
{{- if $autoscaling.enabled -}}
{{- $running := lookup "apps/v1" "Deployment" .Release.Namespace (include "quotagate.store" .) -}}
{{- max (dig "spec" "replicas" 0 $running) $autoscaling.minReplicas | min $autoscaling.maxReplicas -}}
{{- else -}}
{{- .Values.store.replicas -}}
{{- end -}}
{{- end -}}

{{- define "quotagate.serviceAccount" -}}
{{ .Values.store.serviceAccount.name | default (ternary (include "quotagate.store" .) "default" .Values.store.serviceAccount.create) }}
{{- end -}}

{{- define "quotagate.filterNamespace" -}}
{{ .Values.filter.namespace | default .Release.Namespace }}
{{- end -}}

{{- /* The tag of all images. */ -}}
{{- define "quotagate.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "quotagate.storeImage" -}}
{{- $repository := printf "%s/%s" (include "quotagate.registry" .) .Values.store.image.repository -}}
{{- if .Values.store.image.digest -}}
{{ $repository }}@{{ .Values.store.image.digest }}
{{- else -}}
{{ $repository }}:{{ include "quotagate.tag" . }}
{{- end -}}
{{- end -}}

{{- define "quotagate.filterImage" -}}
{{- $filter := .Values.filter -}}
{{- $wasm := ternary "quotagate-filter-bodies" "quotagate-filter" (eq "true" (include "quotagate.readsBodies" .)) -}}
{{- $default := ternary "quotagate-envoy" $wasm (eq $filter.form "native") -}}
{{- $repository := printf "%s/%s" (include "quotagate.registry" .) ($filter.image.repository | default $default) -}}
{{- if and $filter.image.sha256 (eq $filter.form "native") -}}
{{ $repository }}@sha256:{{ $filter.image.sha256 }}
{{- else -}}
{{ $repository }}:{{ include "quotagate.tag" . }}
{{- end -}}
{{- end -}}

{{- /* Whether there is something that only an EnvoyProxy can add: the module, or the cluster of the
chart's store, which speaks plain HTTP. */ -}}
{{- define "quotagate.hasEnvoyProxy" -}}
{{- $filter := .Values.filter -}}
{{- $store := .Values.store -}}
{{- if and (eq $filter.kind "EnvoyExtensionPolicy") $filter.envoyGateway.envoyProxy (or (eq $filter.form "native") (and $store.enabled (not $store.tls.enabled))) -}}
true
{{- end -}}
{{- end -}}
