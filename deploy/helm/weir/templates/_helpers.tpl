{{- define "weir.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "weir.labels" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "weir.selector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "weir.name" .) -}}
{{- end -}}

{{- /* The configuration of the Service of each Gateway, if Gateways have the addresses of these. */ -}}
{{- define "weir.gatewayService" -}}
{{- $kubernetes := .Values.config.kubernetes | default dict }}
{{- $addresses := ($kubernetes.gateways | default dict).addresses | default dict }}
{{- if hasKey $addresses "service" }}{{ toYaml ($addresses.service | default dict) }}{{ end }}
{{- end -}}

{{- /* Not empty if weir keeps Services for Gateways. */ -}}
{{- define "weir.gatewayServices" -}}
{{- if .Values.gateway.enabled }}{{ if or .Values.gateway.services (include "weir.gatewayService" .) }}true{{ end }}{{ end }}
{{- end -}}

{{- /* The rules for serving Ingresses of a namespace. */ -}}
{{- define "weir.rules" -}}
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [services, secrets]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
{{- if .Values.gateway.enabled }}
- apiGroups: [gateway.networking.k8s.io]
  resources: [gateways, listenersets, httproutes, grpcroutes, tlsroutes, tcproutes, backendtlspolicies, referencegrants]
  verbs: [list, watch]
- apiGroups: [gateway.networking.k8s.io]
  resources: [gateways/status, listenersets/status, httproutes/status, grpcroutes/status, tlsroutes/status, tcproutes/status, backendtlspolicies/status]
  verbs: [patch]
{{- end }}
{{- $kubernetes := .Values.config.kubernetes | default dict }}
{{- if or .Values.gateway.enabled ($kubernetes.ingress_nginx | default dict).config_map }}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch]
{{- end }}
{{- if include "weir.gatewayServices" . }}
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, update, delete]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, create, update]
{{- end }}
{{- if .Values.rbac.tell }}
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [networking.k8s.io]
  resources: [ingresses/status]
  verbs: [patch]
{{- end }}
{{- end -}}

{{- define "weir.subjects" -}}
subjects:
  - {kind: ServiceAccount, name: {{ include "weir.serviceAccount" . }}, namespace: {{ .Release.Namespace }}}
{{- end -}}

{{- /* The port of config.metrics.address. */ -}}
{{- define "weir.metricsPort" -}}
{{- dig "metrics" "address" ":8088" .Values.config | splitList ":" | last -}}
{{- end -}}

{{- /* The port in the address of a listener, or of another port of weir. */ -}}
{{- define "weir.port" -}}
{{- with . }}{{ .address | splitList ":" | last }}{{ end -}}
{{- end -}}

{{- /* A duration of weir's such as 1m30s, in whole seconds. */ -}}
{{- define "weir.seconds" -}}
{{- sub (mustToDate "15:04:05" "00:00:00" | mustDateModify (printf "+%s" .) | unixEpoch | int64) (mustToDate "15:04:05" "00:00:00" | unixEpoch | int64) -}}
{{- end -}}
