{{/* Not empty with csi.engine ceph and cephfs. */}}
{{- define "cleat.ceph" -}}
{{- if and .Values.csi.enabled (has .Values.csi.engine (list "ceph" "cephfs")) }}true{{ end -}}
{{- end -}}

{{/* Not empty with csi.engine cephfs. */}}
{{- define "cleat.cephfs" -}}
{{- if and .Values.csi.enabled (eq .Values.csi.engine "cephfs") }}true{{ end -}}
{{- end -}}

{{/* Not empty if Ceph nodes report their boots, which a fence needs: each in a Lease that the
admission policy leaves to it alone. */}}
{{- define "cleat.bootReports" -}}
{{- $csi := .Values.csi -}}
{{- if and (include "cleat.ceph" .) $csi.ceph.bootReports (or $csi.addons.enabled $csi.fence.tlsSecret) $csi.admissionPolicy.enabled }}true{{ end -}}
{{- end -}}

{{/* Prefix of these Leases, a DNS label. */}}
{{- define "cleat.bootReports.prefix" -}}
{{- printf "%s-boot" (include "cleat.fullname" . | replace "." "-") -}}
{{- end -}}

{{- define "cleat.bootReports.arg" -}}
- --ceph-boot-leases={{ .Release.Namespace }}/{{ include "cleat.bootReports.prefix" . }}
{{- end -}}

{{/* Its part of cleat.remote.controller, with the names of ceph-csi. */}}
{{- define "cleat.ceph.controller.args" -}}
{{- $ceph := .Values.csi.ceph -}}
- --ceph-cluster={{ $ceph.clusterID }}
{{- range $ceph.pools }}
- --ceph-pool={{ . }}
{{- end }}
{{- with $ceph.fsName }}
- --cephfs-name={{ . }}
{{- end }}
- --ceph-secret=/etc/cleat/ceph-secret
{{- if include "cleat.bootReports" . }}
{{ include "cleat.bootReports.arg" . }}
{{- end }}
{{- end -}}

{{- define "cleat.ceph.controller.mounts" -}}
- {name: ceph-config, mountPath: /etc/ceph-csi-config, readOnly: true}
- {name: ceph-secret, mountPath: /etc/cleat/ceph-secret, readOnly: true}
{{- if or (include "cleat.bootReports" .) (include "cleat.controller.elects" .) }}
{{ include "cleat.token.mount" . }}
{{- end }}
{{- end -}}

{{- define "cleat.ceph.controller.volumes" -}}
- name: ceph-config
  configMap: {name: {{ .Values.csi.ceph.configMap }}}
- name: ceph-secret
  secret: {secretName: {{ .Values.csi.ceph.controllerSecret }}, defaultMode: 256} # 0400
{{- end -}}
