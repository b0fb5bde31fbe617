{{/* A sidecar of kubernetes-csi: (dict "root" $ "name" "provisioner" "args" (list …) "healthPort" 0),
with the name in the values and, if it differs, "container" */}}
{{- define "cleat.sidecar" -}}
{{- $of := index .root.Values.sidecars .name -}}
{{- $credentials := include "cleat.spdk.credentials" .root -}}
{{- /* The driver elects for them: they wait for its socket, and end with it. */}}
{{- $elected := include "cleat.controller.elects" .root -}}
- name: csi-{{ default .name .container }}
  image: {{ include "cleat.reference" (list .root $of "") }}
  imagePullPolicy: {{ $of.pullPolicy }}
  args:
    - --csi-address=/csi/csi.sock
    - --kube-api-qps={{ .root.Values.sidecars.kubeAPIQPS }}
    - --kube-api-burst={{ .root.Values.sidecars.kubeAPIBurst }}
    - --v={{ include "cleat.verbosity" (list .root $of) }}
    {{- range .args }}
    - {{ . }}
    {{- end }}
    {{- if eq .name "provisioner" }}
    # The default is one capacity update a second; each volume changes one per class.
    - --kube-api-capacity-qps=10
    - --kube-api-capacity-burst=20
    {{- end }}
    {{- if .healthPort }}
    {{- if not $elected }}
    - --leader-election
    - --leader-election-namespace=$(NAMESPACE)
    {{- end }}
    - --http-endpoint=:{{ .healthPort }}
    {{- end }}
    {{- with $of.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    {{- if $credentials }}
    # It works on the DPU cluster.
    - {name: NAMESPACE, value: {{ include "cleat.spdk.namespace" .root }}}
    - {name: KUBERNETES_SERVICE_HOST, valueFrom: {secretKeyRef: {name: {{ $credentials }}, key: KUBERNETES_SERVICE_HOST}}}
    - {name: KUBERNETES_SERVICE_PORT, valueFrom: {secretKeyRef: {name: {{ $credentials }}, key: KUBERNETES_SERVICE_PORT}}}
    {{- else }}
    - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    {{- end }}
  # Root without capabilities: only root can use the driver's socket.
  {{- include "cleat.rootWithoutCapabilities" .root | nindent 2 }}
  {{- if and .healthPort (not $elected) }}
  livenessProbe:
    httpGet: {path: /healthz/leader-election, port: {{ .healthPort }}}
    {{- toYaml .root.Values.sidecars.livenessProbe | nindent 4 }}
  {{- end }}
  resources:
    {{- toYaml $of.resources | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - {name: socket, mountPath: /csi}
    {{- if $credentials }}
    - {name: dpu-cluster, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
    {{- else }}
    {{- include "cleat.token.mount" . | nindent 4 }}
    {{- end }}
    {{- if eq .name "snapshotMetadata" }}
    - {name: snapshot-metadata-tls, mountPath: /etc/cleat/snapshot-metadata-tls, readOnly: true}
    {{- end }}
{{- end -}}

{{/* Its own log level, or that of all: (list $ .Values.sidecars.provisioner) */}}
{{- define "cleat.verbosity" -}}
{{- ternary (index . 0).Values.sidecars.logVerbosity (index . 1).logVerbosity (eq (toString (index . 1).logVerbosity) "") -}}
{{- end -}}

{{/* The feature gate of group snapshots, which newer releases have on, as the role allows them: (not
empty if it does) */}}
{{- define "cleat.groupGate" -}}
--feature-gates=CSIVolumeGroupSnapshot={{ empty . | not }}
{{- end -}}

{{/* Not empty if csi-snapshotter handles group snapshots, and if snapshot-controller does. */}}
{{- define "cleat.groups" -}}
{{- if and .Values.csi.enabled .Values.csi.volumeGroupSnapshotClasses }}true{{ end -}}
{{- end -}}

{{- define "cleat.snapshotController.groups" -}}
{{- if or (include "cleat.groups" .) .Values.snapshotController.groupSnapshots }}true{{ end -}}
{{- end -}}

{{/* The sidecar of CSI-Addons: (list $ port volume socket) */}}
{{- define "cleat.addons" -}}
{{- $root := index . 0 -}}
{{- $of := $root.Values.sidecars.addons -}}
# Its port accepts any token of the cluster: restrict it to the manager (networkPolicy).
- name: csi-addons
  image: {{ include "cleat.reference" (list $root $of "") }}
  imagePullPolicy: {{ $of.pullPolicy }}
  args:
    - --csi-addons-address=/run/csi-addons/{{ index . 3 }}
    - --node-id=$(NODE_NAME)
    - --controller-port={{ index . 1 }}
    - --pod=$(POD_NAME)
    - --namespace=$(NAMESPACE)
    - --pod-uid=$(POD_UID)
    - --leader-election-namespace=$(NAMESPACE)
    - --v={{ include "cleat.verbosity" (list $root $of) }}
    - --stagingpath={{ $root.Values.kubeletDir }}/plugins/kubernetes.io/csi/
    {{- with $of.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
  # Root without capabilities: only root can use the driver's socket.
  {{- include "cleat.rootWithoutCapabilities" $root | nindent 2 }}
  ports:
    - {name: csi-addons, containerPort: {{ index . 1 }}}
  resources:
    {{- toYaml $of.resources | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - {name: {{ index . 2 }}, mountPath: /run/csi-addons}
    {{- include "cleat.token.mount" . | nindent 4 }}
{{- end -}}

{{/* Name of the Secret of fence calls: (list $ "csi" .Values.csi.addons) */}}
{{- define "cleat.addons.secretName" -}}
{{- default (printf "%s-%s-addons" (include "cleat.fullname" (index . 0)) (index . 1)) (index . 2).secret -}}
{{- end -}}

{{/* An empty one, for services that want none: the sidecar refuses a fence without.
(list $ component "csi" .Values.csi.addons) */}}
{{- define "cleat.addons.secret" -}}
{{- $root := index . 0 -}}
apiVersion: v1
kind: Secret
metadata:
  name: {{ include "cleat.addons.secretName" (list $root (index . 2) (index . 3)) }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "cleat.labels" (list $root (index . 1)) | nindent 4 }}
type: Opaque
{{- end -}}

{{/* Its permissions, for the service account of its pod: (list $ component driverName secretName) */}}
{{- define "cleat.addons.rbac" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $role := dict "root" $root "component" $component -}}
{{- include "cleat.role" (merge (dict "name" (include "cleat.clusterName" (list $root (printf "%s-addons" $component))) "rules" (include "cleat.rules.addonsCluster" $root)) $role) }}
{{- include "cleat.role" (merge (dict "name" (printf "%s-%s-addons" (include "cleat.fullname" $root) $component) "namespace" $root.Release.Namespace "rules" (include "cleat.rules.addons" .)) $role) }}
{{- end -}}
