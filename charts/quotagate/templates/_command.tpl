{{- /* Whether `helm test` can call the store. With store.tls it would need a certificate of a proxy. In a
mesh it would need a sidecar, and a Pod with a sidecar does not end. */ -}}
{{- define "quotagate.hasTest" -}}
{{- if and .Values.store.enabled (not .Values.store.tls.enabled) (not .Values.istio.enabled) -}}
true
{{- end -}}
{{- end -}}

{{- define "quotagate.testSelector" -}}
app.kubernetes.io/name: quotagate-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* What pods that run one command have in common. */ -}}
{{- define "quotagate.commandPod" -}}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml .Values.store.podSecurityContext | nindent 2 }}
{{- with .Values.store.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.store.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* A container that runs `quotagate`. Its arguments follow. */ -}}
{{- define "quotagate.command" -}}
name: quotagate
image: {{ include "quotagate.storeImage" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
resources:
  requests: {cpu: 10m, memory: 32Mi}
  limits: {memory: 64Mi}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end -}}
