{{/* The components of the release that have pods, as YAML: each with the port of its metrics,
whether its pods are in the host's network, and whether they have a privileged container. */}}
{{- define "cleat.components" -}}
{{- $v := .Values -}}
{{- $remote := include "cleat.remote" . | empty | not -}}
{{- $mounting := not $v.dpu.blockDevicesOnly -}}
{{- if include "cleat.hasNode" . }}
csi-node: {port: {{ $v.csi.metricsPort }}, hostNetwork: {{ $remote }}, privileged: true}
{{- end }}
{{- if include "cleat.hasController" . }}
csi-controller: {port: {{ $v.csi.metricsPort }}, hostNetwork: false, privileged: {{ not $remote }}}
{{- end }}
{{- if include "cleat.placement" . }}
csi-placement: {port: {{ $v.csi.metricsPort }}, hostNetwork: false, privileged: false}
{{- end }}
{{- if $v.fence.enabled }}
fence: {port: {{ $v.fence.metricsPort }}, hostNetwork: true, privileged: false}
{{- end }}
{{- if $v.takeover.enabled }}
takeover: {port: {{ $v.takeover.metricsPort }}, hostNetwork: false, privileged: false}
{{- end }}
{{- if $v.dpu.enabled }}
dpu: {port: {{ $v.dpu.metricsPort }}, hostNetwork: {{ $mounting }}, privileged: {{ $mounting }}}
{{- end }}
{{- if $v.sriov.plugin.enabled }}
sriov-plugin: {port: {{ $v.sriov.plugin.metricsPort }}, hostNetwork: true, privileged: true}
{{- end }}
{{- if $v.sriov.daemon.enabled }}
sriov-daemon: {port: {{ $v.sriov.daemon.metricsPort }}, hostNetwork: true, privileged: true}
{{- end }}
{{- if $v.snapshotController.enabled }}
snapshot-controller: {port: {{ $v.snapshotController.metricsPort }}, hostNetwork: false, privileged: false}
{{- end }}
{{- end -}}

{{/* The service account in the values of a component, as YAML: (list $ "csi-node") */}}
{{- define "cleat.serviceAccount" -}}
{{- $v := (index . 0).Values -}}
{{- $of := dict "csi-node" $v.csi "csi-controller" $v.csi.controller "csi-placement" $v.csi.placement "fence" $v.fence "takeover" $v.takeover "dpu" $v.dpu "sriov-plugin" $v.sriov.plugin "sriov-daemon" $v.sriov.daemon "snapshot-controller" $v.snapshotController -}}
{{- toYaml (get $of (index . 1)).serviceAccount -}}
{{- end -}}

{{- define "cleat.serviceAccountName" -}}
{{- default (printf "%s-%s" (include "cleat.fullname" (index . 0)) (index . 1)) (include "cleat.serviceAccount" . | fromYaml).name -}}
{{- end -}}

{{/* Its name in requests to the API server. */}}
{{- define "cleat.user" -}}
{{- printf "system:serviceaccount:%s:%s" (index . 0).Release.Namespace (include "cleat.serviceAccountName" .) -}}
{{- end -}}

{{/* The same as the subject of a binding. */}}
{{- define "cleat.subject" -}}
{{- printf "{kind: ServiceAccount, name: %s, namespace: %s}" (include "cleat.serviceAccountName" .) (index . 0).Release.Namespace -}}
{{- end -}}

{{/* A role and its binding, unless rbac.create is false; cluster-wide without a namespace:
(dict "root" $ "component" "csi-node" "name" "n" "namespace" "storage" "rules" "- …" "subject" "{…}").
The subject can be left out: that of the component. */}}
{{- define "cleat.role" -}}
{{- $of := list .root .component -}}
{{- if .root.Values.rbac.create }}
{{- $role := . }}
{{- $kind := ternary "Role" "ClusterRole" (hasKey . "namespace") }}
{{- range $suffix := list "" "Binding" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}{{ $suffix }}
metadata:
  name: {{ $role.name }}
  {{- with $role.namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "cleat.labels" $of | nindent 4 }}
{{- if $suffix }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ $role.name }}
subjects:
  - {{ default (include "cleat.subject" $of) $role.subject }}
{{- else }}
rules:
  {{- $role.rules | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
