{{/* Not empty with csi.engine spdk. */}}
{{- define "cleat.spdk" -}}
{{- if and .Values.csi.enabled (eq .Values.csi.engine "spdk") }}true{{ end -}}
{{- end -}}

{{/* Name of the Secret with the access to the DPU cluster: not empty in the release of the
host cluster whose sidecars work on the DPU cluster. That release has only the controller. */}}
{{- define "cleat.spdk.credentials" -}}
{{- if include "cleat.spdk" . }}{{ .Values.csi.spdk.dpuCluster.credentialsSecret }}{{ end -}}
{{- end -}}

{{/* Service account of those sidecars in the DPU cluster: not empty in the release of the DPU
cluster, which has only the CSIDriver, classes and roles. */}}
{{- define "cleat.spdk.account" -}}
{{- if include "cleat.spdk" . }}{{ .Values.csi.spdk.dpuCluster.serviceAccount }}{{ end -}}
{{- end -}}

{{/* Namespace of that service account, and of the sidecars' leases. */}}
{{- define "cleat.spdk.namespace" -}}
{{- default .Release.Namespace .Values.csi.spdk.dpuCluster.namespace -}}
{{- end -}}

{{/* Its part of cleat.remote.controller, with the names of spdk-csi. */}}
{{- define "cleat.spdk.controller.args" -}}
- --spdk-config=/etc/spdkcsi-config/config.json
{{- if .Values.csi.spdk.secret }}
- --spdk-secret=/etc/cleat/spdk-secret/secret.json
{{- end }}
- --spdk-state=configmap:{{ .Release.Namespace }}/{{ include "cleat.state" . }}
{{- with .Values.csi.nvme.clusterID }}
- --cluster-id={{ . }}
{{- end }}
{{- with .Values.csi.maxVolumes }}
- --max-volumes={{ int64 . }}
{{- end }}
{{- end -}}

{{- define "cleat.spdk.controller.mounts" -}}
- {name: spdk-config, mountPath: /etc/spdkcsi-config, readOnly: true}
{{- if .Values.csi.spdk.secret }}
- {name: spdk-secret, mountPath: /etc/cleat/spdk-secret, readOnly: true}
{{- end }}
# For its state, always in this cluster.
{{ include "cleat.token.mount" . }}
{{- end -}}

{{- define "cleat.spdk.controller.volumes" -}}
- name: spdk-config
  configMap: {name: {{ .Values.csi.spdk.configMap }}}
{{- with .Values.csi.spdk.secret }}
- name: spdk-secret
  secret: {secretName: {{ . }}, defaultMode: 256} # 0400
{{- end }}
{{- with include "cleat.spdk.credentials" . }}
# The names that client-go reads; DPF renews the token.
- name: dpu-cluster
  projected:
    defaultMode: 256 # 0400
    sources:
      - secret: {name: {{ . }}, items: [{key: TOKEN_FILE, path: token}, {key: KUBERNETES_CA_DATA, path: ca.crt}]}
{{- end }}
{{- end -}}
