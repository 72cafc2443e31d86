{{- define "weir.name" -}}
{{- if contains "weir" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-weir" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "weir.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "weir.selector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end }}

{{- define "weir.engineSelector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: engine
{{- end }}

{{- define "weir.labels" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "weir.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "weir.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* What cannot work is refused by the name of the value. */}}
{{- define "weir.check" -}}
{{- if not (or .Values.discover .Values.engines .Values.simulatedEngines.enabled) }}
{{- fail "no engines: set discover (such as [service/vllm]), engines, or simulatedEngines.enabled" }}
{{- end }}
{{- if not .Values.insecure }}
{{- if not .Values.keysSecret }}{{ fail "keysSecret is needed with insecure: false" }}{{ end }}
{{- if not .Values.adminKeysSecret }}{{ fail "adminKeysSecret is needed with insecure: false" }}{{ end }}
{{- if and .Values.peers.enabled (not .Values.peers.tlsSecret) }}{{ fail "peers.tlsSecret is needed with insecure: false" }}{{ end }}
{{- end }}
{{- if and .Values.limits.url (not .Values.keysSecret) }}{{ fail "limits.url needs keysSecret: limits belong to keys" }}{{ end }}
{{- if and .Values.autoscaling.enabled (not .Values.autoscaling.target.name) (not .Values.simulatedEngines.enabled) }}
{{- fail "autoscaling.target.name is needed: the Deployment that runs the engines" }}
{{- end }}
{{- if lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas) }}
{{- fail "autoscaling.maxReplicas is less than autoscaling.minReplicas" }}
{{- end }}
{{- end }}
