{{- /* What the pods of the store and of the rate limit service have in common. */ -}}
{{- define "quotagate.servingPod" -}}
{{- $store := .Values.store -}}
automountServiceAccountToken: false
serviceAccountName: {{ include "quotagate.serviceAccount" . }}
{{- with $store.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
# Longer than the drain plus the 5 s for the last calls. The program drains by itself, so it
# needs no preStop hook, and its image has no other program.
terminationGracePeriodSeconds: {{ add $store.drainSeconds 20 }}
securityContext:
  {{- toYaml $store.podSecurityContext | nindent 2 }}
{{- with $store.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $store.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Their variables. */ -}}
{{- define "quotagate.servingVariables" -}}
{{- $store := .Values.store -}}
- name: QUOTAGATE_ADMIN
  value: 0.0.0.0:9181
- name: QUOTAGATE_STORE
  valueFrom:
    secretKeyRef: {name: {{ $store.redis.existingSecret | quote }}, key: {{ $store.redis.urlKey | quote }}}
- name: QUOTAGATE_PREFIX
  value: {{ $store.prefix | quote }}
# The time that it serves after SIGTERM, until proxies have learnt that it left the
# Service.
- name: QUOTAGATE_DRAIN
  value: {{ int $store.drainSeconds }}s
- name: QUOTAGATE_LOG
  value: {{ $store.log }}
{{- if $store.adminToken.existingSecret }}
# (!) Every pod can reach the admin address. Without a token it serves health and
# metrics only.
- name: QUOTAGATE_ADMIN_TOKEN_FILE
  value: /etc/quotagate/admin-token
{{- end }}
{{- with $store.adminHosts }}
- name: QUOTAGATE_ADMIN_HOSTS
  value: {{ join "," . | quote }}
{{- end }}
{{- if $store.redis.passwordKey }}
- name: QUOTAGATE_PASSWORD_FILE
  value: /etc/quotagate/redis-password
{{- end }}
{{- if and $store.redis.tls.existingSecret $store.redis.tls.caKey }}
- name: SSL_CERT_FILE
  value: /etc/redis-tls/{{ $store.redis.tls.caKey }}
{{- end }}
{{- end -}}

{{- /* The secrets below `/etc/quotagate` that both read, as sources of a projected volume. */ -}}
{{- define "quotagate.servingSecrets" -}}
{{- with .Values.store.adminToken -}}
{{- if .existingSecret }}
- secret:
    name: {{ .existingSecret }}
    items: [{key: {{ .key }}, path: admin-token}]
{{- end }}
{{- end }}
{{- with .Values.store.redis -}}
{{- if .passwordKey }}
- secret:
    name: {{ .existingSecret }}
    items: [{key: {{ .passwordKey }}, path: redis-password}]
{{- end }}
{{- end }}
{{- end -}}

{{- /* How operators reach a Deployment: a list of the root and its name. */ -}}
{{- define "quotagate.operators" -}}
{{- $deployment := last . -}}
{{- with first . }}
{{- if .Values.store.adminToken.existingSecret }}

Operate it through a tunnel, in a second terminal:

  kubectl -n {{ .Release.Namespace }} port-forward deploy/{{ $deployment }} 9181
  export QUOTAGATE_TOKEN="$(kubectl -n {{ .Release.Namespace }} get secret {{ .Values.store.adminToken.existingSecret }} \
    -o jsonpath='{.data.{{ .Values.store.adminToken.key }}}' | base64 -d)"
  quotagate dial list

If that Secret has a line for each named token, QUOTAGATE_TOKEN is the secret that `quotagate token
new` printed.
{{- else }}

Without store.adminToken.existingSecret it serves health and metrics, and no operators.
{{- end }}
{{- end }}
{{- end -}}
