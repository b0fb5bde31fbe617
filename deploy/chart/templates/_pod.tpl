{{/* Fields common to the pods of all components: (list $ "csi-node" .Values.csi) */}}
{{- define "cleat.podSpec" -}}
{{- $root := index . 0 -}}
{{- $of := index . 2 -}}
serviceAccountName: {{ include "cleat.serviceAccountName" (list $root (index . 1)) }}
automountServiceAccountToken: false
nodeSelector:
  kubernetes.io/os: linux
{{- with $of.nodeSelector }}
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- $tolerations := $of.tolerations }}
{{- if and (has (index . 1) (list "csi-node" "fence" "dpu" "sriov-plugin" "sriov-daemon")) (not (has (dict "operator" "Exists") $tolerations)) }}
{{- /* A node that was taken over needs them after its reboot: fences are in force only while they run. */}}
{{- $tolerations = append $tolerations (dict "key" "node.kubernetes.io/out-of-service" "operator" "Exists") }}
{{- end }}
{{- with $tolerations }}
tolerations:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.affinity }}
affinity:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- if gt (int (default 1 $of.replicaCount)) 1 }}
# On different nodes where that is possible; affinity can demand it.
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "cleat.selector" . | nindent 8 }}
{{- end }}
{{- end -}}

{{/* Tolerations of a controller for which values have none: after the loss of its node it
starts elsewhere in half a minute. */}}
{{- define "cleat.moveTolerations" -}}
tolerations:
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
{{- end -}}

{{/* Items of a list in the values, if it has any, indented: (list .Values.csi.extraContainers 8) */}}
{{- define "cleat.extra" -}}
{{- $indent := int (index . 1) -}}
{{- with index . 0 }}{{ toYaml . | nindent $indent }}{{ end -}}
{{- end -}}

{{/* Update strategy of a DaemonSet or Deployment: (.Values.csi) */}}
{{- define "cleat.updateStrategy" -}}
type: {{ .updateStrategy.type }}
{{- if and (eq .updateStrategy.type "RollingUpdate") .updateStrategy.rollingUpdate }}
rollingUpdate:
  {{- toYaml .updateStrategy.rollingUpdate | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Metadata of pods: (list $ "csi-node" .Values.csi) */}}
{{- define "cleat.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $of := index . 2 -}}
labels:
{{- include "cleat.labels" (list $root (index . 1) $of.podLabels) | nindent 2 }}
{{- with $of.podAnnotations }}
annotations:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Security context of containers that only open root's sockets (0600). */}}
{{- define "cleat.rootWithoutCapabilities" -}}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.seLinuxOptions }}
  seLinuxOptions:
{{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* Security context of containers that mount or change devices: each use states its reason. */}}
{{- define "cleat.privileged" -}}
securityContext:
  privileged: true
  runAsUser: 0
  runAsGroup: 0
  readOnlyRootFilesystem: true
{{- with .Values.seLinuxOptions }}
  seLinuxOptions:
{{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* Address for metrics and probes of processes in the host's network: all addresses
only if metrics.enabled. (list $ port) */}}
{{- define "cleat.hostMetricsAddress" -}}
{{- ternary "" "127.0.0.1" (index . 0).Values.metrics.enabled }}:{{ index . 1 }}
{{- end -}}

{{/* Probes of the chart's own processes. They answer when the state is open, which can
take long after a crash. (list $ hostNetwork .Values.csi) */}}
{{- define "cleat.probes" -}}
{{- $host := "" }}
{{- if and (index . 1) (not (index . 0).Values.metrics.enabled) }}{{ $host = "host: 127.0.0.1, " }}{{ end -}}
startupProbe:
  httpGet: { {{- $host }}path: /healthz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 300
livenessProbe:
  httpGet: { {{- $host }}path: /healthz, port: metrics}
  {{- toYaml (index . 2).livenessProbe | nindent 2 }}
readinessProbe:
  httpGet: { {{- $host }}path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 6
{{- end -}}

{{/* Where containers that call the API server find a token, and the volume with it. Pods mount
none by themselves (automountServiceAccountToken), so that the others have none. */}}
{{- define "cleat.token.mount" -}}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end -}}

{{- define "cleat.token.volume" -}}
- name: token
  projected:
    defaultMode: 256 # 0400
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end -}}
