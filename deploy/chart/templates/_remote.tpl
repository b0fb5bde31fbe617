{{/* Not empty with csi.engine none. */}}
{{- define "cleat.static" -}}
{{- if and .Values.csi.enabled (eq .Values.csi.engine "none") }}true{{ end -}}
{{- end -}}

{{/* Not empty with an engine whose volumes are on other machines. Its nodes attach them in
the host's network. */}}
{{- define "cleat.remote" -}}
{{- include "cleat.ceph" . }}{{ include "cleat.static" . -}}
{{- end -}}

{{/* Arguments common to their processes: (list $ "controller") */}}
{{- define "cleat.remote.args" -}}
{{- $root := index . 0 -}}
- csi
- --engine={{ $root.Values.csi.engine }}
- --services={{ index . 1 }}
- --driver-name={{ $root.Values.csi.driverName }}
- --node-id=$(NODE_NAME)
- --log-format={{ $root.Values.logFormat }}
- --log-level={{ $root.Values.logLevel }}
{{- end -}}

{{/* Their node service. Keys of Ceph come with the kubelet's requests: that pod has no Secret. */}}
{{- define "cleat.remote.node" -}}
{{- $ceph := include "cleat.ceph" . -}}
{{- $nvme := .Values.csi.nvme -}}
- name: driver
  image: {{ include "cleat.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    {{- include "cleat.remote.args" (list . "node") | nindent 4 }}
    {{- if $ceph }}
    # A fence of these addresses stops the node: the controller gets them with the node's id.
    - --node-address=$(HOST_IPS)
    {{- else }}
    {{- with $nvme.clusterID }}
    - --cluster-id={{ . }}
    {{- end }}
    {{- if $nvme.keySecret }}
    - --nvme-key-dir=/etc/cleat/nvme-keys
    {{- end }}
    {{- end }}
    - --registration-dir={{ .Values.kubeletDir }}/plugins_registry
    {{- with .Values.csi.maxVolumes }}
    - --max-volumes={{ int64 . }}
    {{- end }}
    - --metrics-address={{ include "cleat.hostMetricsAddress" (list . .Values.csi.metricsPort) }}
    {{- with .Values.csi.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    {{- if $ceph }}
    - {name: HOST_IPS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
    {{- end }}
    # Not flags: commands run in this container (cleat csi status) need them too.
    - {name: CLEAT_ENDPOINT, value: "unix://{{ include "cleat.csi.socketDir" . }}/csi.sock"}
    - {name: CLEAT_STATE_DIR, value: {{ include "cleat.csi.state" (list . "node") }}}
    {{- with .Values.csi.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  # Privileged: it mounts for the kubelet, which needs Bidirectional propagation, and
  # {{ if $ceph }}maps images in /sys/bus/rbd{{ else }}connects controllers in /dev/nvme-fabrics{{ end }}, which become devices in the host's /dev.
  {{- include "cleat.privileged" . | nindent 2 }}
  ports:
    - {name: metrics, containerPort: {{ .Values.csi.metricsPort }}}
  {{- include "cleat.probes" (list . true) | nindent 2 }}
  resources:
    {{- toYaml .Values.csi.resources | nindent 4 }}
  # Not the default below /dev, which is the host's.
  terminationMessagePath: /termination-log
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    {{- if $ceph }}
    - {name: ceph-config, mountPath: /etc/ceph-csi-config, readOnly: true}
    {{- else if $nvme.keySecret }}
    - {name: nvme-keys, mountPath: /etc/cleat/nvme-keys, readOnly: true}
    {{- end }}
    - {name: state, mountPath: {{ include "cleat.csi.state" (list . "node") }}}
    - {name: kubelet-plugins, mountPath: {{ .Values.kubeletDir }}/plugins, mountPropagation: Bidirectional}
    - {name: kubelet-pods, mountPath: {{ .Values.kubeletDir }}/pods, mountPropagation: Bidirectional}
    - {name: registration, mountPath: {{ .Values.kubeletDir }}/plugins_registry}
    - {name: dev, mountPath: /dev}
    - {name: sys, mountPath: /sys}
    # modprobe {{ ternary "nvme-tcp" "rbd" (empty $ceph) }}.
    - {name: modules, mountPath: /lib/modules, readOnly: true}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "cleat.remote.node.volumes" -}}
- name: state
  hostPath: {path: {{ include "cleat.csi.state" (list . "node") }}, type: DirectoryOrCreate}
{{- if include "cleat.ceph" . }}
- name: ceph-config
  configMap: {name: {{ .Values.csi.ceph.configMap }}}
{{- else if .Values.csi.nvme.keySecret }}
- name: nvme-keys
  secret: {secretName: {{ .Values.csi.nvme.keySecret }}, defaultMode: 256} # 0400
{{- end }}
- name: kubelet-plugins
  hostPath: {path: {{ .Values.kubeletDir }}/plugins, type: Directory}
- name: kubelet-pods
  hostPath: {path: {{ .Values.kubeletDir }}/pods, type: Directory}
- name: registration
  hostPath: {path: {{ .Values.kubeletDir }}/plugins_registry, type: Directory}
- name: dev
  hostPath: {path: /dev, type: Directory}
- name: sys
  hostPath: {path: /sys, type: Directory}
- name: modules
  hostPath: {path: /lib/modules, type: DirectoryOrCreate} # kernels without modules have none
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- end -}}
