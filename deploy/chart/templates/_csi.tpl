{{- define "cleat.csi.dir" -}}
{{- default (printf "/var/lib/cleat/%s" .Values.csi.driverName) .Values.csi.hostPath -}}
{{- end -}}

{{- define "cleat.csi.poolParent" -}}
{{- default (printf "%s/storage" (include "cleat.csi.dir" .)) .Values.csi.pool.hostPath -}}
{{- end -}}

{{- define "cleat.csi.socketDir" -}}
{{- printf "%s/plugins/%s" .Values.kubeletDir .Values.csi.driverName -}}
{{- end -}}

{{/* Not empty if the controller publishes volumes to nodes; spdk and external have a value for it. */}}
{{- define "cleat.attachRequired" -}}
{{- if and (ne .Values.csi.mode "perNode") (index .Values.csi .Values.csi.engine | default dict | dig "attachRequired" true) }}true{{ end -}}
{{- end -}}

{{/* Arguments common to every process of the driver. */}}
{{- define "cleat.csi.args" -}}
- --driver-name={{ .Values.csi.driverName }}
- --node-id=$(NODE_NAME)
- --pool={{ include "cleat.csi.poolParent" . }}/pool
{{- with .Values.csi.pool.image }}
- --pool-image={{ . }}
{{- end }}
- --overprovision-ratio={{ .Values.csi.pool.overprovisionRatio }}
{{- with .Values.csi.maxVolumes }}
- --max-volumes={{ int64 . }}
{{- end }}
{{- range $key, $value := .Values.csi.topology }}
- --topology={{ $key }}={{ $value }}
{{- end }}
- --metrics-address=:{{ .Values.csi.metricsPort }}
- --log-format={{ .Values.logFormat }}
- --log-level={{ .Values.logLevel }}
{{- end -}}

{{/* Not empty if the controller accepts fences over the network. */}}
{{- define "cleat.csi.listens" -}}
{{- if and (include "cleat.hasController" .) .Values.csi.fence.tlsSecret }}true{{ end -}}
{{- end -}}

{{/* Name of the Service for that, and its address: also in the certificate. */}}
{{- define "cleat.csi.fenceService" -}}
{{- include "cleat.fullname" . }}-csi-fence
{{- end -}}

{{- define "cleat.csi.fenceAddress" -}}
{{- include "cleat.csi.fenceService" . }}.{{ .Release.Namespace }}
{{- end -}}

{{/* The Secret of a process that fences: one, also if it has peers and listens. */}}
{{- define "cleat.csi.fenceSecret" -}}
{{- default .Values.csi.addons.tlsSecret .Values.csi.fence.tlsSecret -}}
{{- end -}}

{{/* Arguments for fencing: mutual TLS and sockets. (list $ services), or remote, for a controller
without a node whose storage enforces the fence. */}}
{{- define "cleat.csi.fencing" -}}
{{- $root := index . 0 -}}
{{- $addons := $root.Values.csi.addons -}}
{{- if $addons.enabled }}
- --addons-endpoint=unix:///run/csi-addons/addons.sock
{{- end }}
{{- if ne (index . 1) "remote" }}
- --node-address=$(HOST_IPS)
{{- end }}
{{- range $addons.fencePeers }}
- --fence-peer={{ . }}
{{- end }}
{{- if eq (index . 1) "node" }}
- --fence-listen=unix://{{ include "cleat.csi.dir" $root }}/fence/fence.sock
{{- else if eq (index . 1) "controller" }}
- --fence-peer=node=unix://{{ include "cleat.csi.dir" $root }}/fence/fence.sock
{{- else if include "cleat.csi.listens" $root }}
- --fence-listen=:{{ $root.Values.csi.fence.port }}
{{- end }}
{{- if include "cleat.csi.fenceSecret" $root }}
- --fence-tls-cert=/etc/cleat/fence-tls/tls.crt
- --fence-tls-key=/etc/cleat/fence-tls/tls.key
- --fence-tls-ca=/etc/cleat/fence-tls/ca.crt
{{- end }}
{{- end -}}

{{/* State directory of a process: (list $ "all") */}}
{{- define "cleat.csi.state" -}}
{{- include "cleat.csi.dir" (index . 0) }}/{{ ternary "state" (printf "%s-state" (index . 1)) (eq (index . 1) "all") }}
{{- end -}}

{{/* The driver: (list $ services), which are all, node or controller. Directories have
the same path here and on the host: the kubelet names them, and so does the kernel. */}}
{{- define "cleat.csi.container" -}}
{{- $root := index . 0 -}}
{{- $services := index . 1 -}}
{{- $controller := eq $services "controller" -}}
- name: driver
  image: {{ include "cleat.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  {{- if or (ne $services "node") $root.Values.csi.addons.enabled }}
  # Starts before the sidecars and ends after them: their calls are drained, and
  # they never lose the socket.
  restartPolicy: Always
  {{- end }}
  args:
    - csi
    {{- if eq $services "all" }}
    - --per-node
    {{- else }}
    - --services={{ $services }}
    - --controller-publish
    {{- end }}
    {{- if not $controller }}
    - --registration-dir={{ $root.Values.kubeletDir }}/plugins_registry
    {{- end }}
    {{- include "cleat.csi.args" $root | nindent 4 }}
    {{- if $root.Values.csi.addons.enabled }}
    {{- include "cleat.csi.fencing" . | nindent 4 }}
    {{- end }}
    {{- include "cleat.extra" (list (concat $root.Values.csi.extraArgs (ternary $root.Values.csi.controller.extraArgs list $controller)) 4) }}
  env:
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    # Not flags: commands run in this container (cleat csi status) need them too.
    {{- if $controller }}
    - {name: CLEAT_ENDPOINT, value: "unix:///csi/csi.sock"}
    {{- else }}
    - {name: CLEAT_ENDPOINT, value: "unix://{{ include "cleat.csi.socketDir" $root }}/csi.sock"}
    {{- end }}
    - {name: CLEAT_STATE_DIR, value: {{ include "cleat.csi.state" . }}}
    {{- if $root.Values.csi.addons.enabled }}
    - {name: HOST_IPS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
    {{- end }}
    {{- with $root.Values.csi.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  # Privileged: it mounts{{ if not $controller }} for the kubelet{{ else }} the pool{{ end }}, which needs Bidirectional propagation,
  # and creates loop devices in the host's /dev.
  {{- include "cleat.privileged" $root | nindent 2 }}
  ports:
    - {name: metrics, containerPort: {{ $root.Values.csi.metricsPort }}}
  {{- include "cleat.probes" (list $root false (ternary $root.Values.csi.controller $root.Values.csi $controller)) | nindent 2 }}
  resources:
    {{- toYaml $root.Values.csi.resources | nindent 4 }}
  # Not the default below /dev, which is the host's.
  terminationMessagePath: /termination-log
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - {name: state, mountPath: {{ include "cleat.csi.state" . }}}
    {{- if eq $services "node" }}
    - {name: pool, mountPath: {{ include "cleat.csi.poolParent" $root }}, mountPropagation: HostToContainer}
    {{- else }}
    # The pool image is mounted below it; that mount must outlive the pod.
    - {name: pool, mountPath: {{ include "cleat.csi.poolParent" $root }}, mountPropagation: Bidirectional}
    {{- end }}
    {{- if $controller }}
    # It freezes volumes in use for snapshots, and so must see their mounts.
    - {name: kubelet-plugins, mountPath: {{ $root.Values.kubeletDir }}/plugins, mountPropagation: HostToContainer}
    - {name: kubelet-pods, mountPath: {{ $root.Values.kubeletDir }}/pods, mountPropagation: HostToContainer}
    - {name: socket, mountPath: /csi}
    {{- else }}
    - {name: kubelet-plugins, mountPath: {{ $root.Values.kubeletDir }}/plugins, mountPropagation: Bidirectional}
    - {name: kubelet-pods, mountPath: {{ $root.Values.kubeletDir }}/pods, mountPropagation: Bidirectional}
    - {name: registration, mountPath: {{ $root.Values.kubeletDir }}/plugins_registry}
    {{- end }}
    - {name: dev, mountPath: /dev}
    # /sys of a pod without hostNetwork is read-only; the driver sets up queues of
    # loop devices there.
    - {name: sys, mountPath: /sys}
    - {name: tmp, mountPath: /tmp}
    # For cleat volume and cleat snapshot, run in this container.
    - {name: tmp, mountPath: /var/lib/cleat/client, subPath: client}
    {{- if $root.Values.csi.addons.enabled }}
    - {name: addons, mountPath: /run/csi-addons}
    {{- if ne $services "all" }}
    - {name: fence, mountPath: {{ include "cleat.csi.dir" $root }}/fence}
    {{- end }}
    {{- if $root.Values.csi.addons.tlsSecret }}
    - {name: fence-tls, mountPath: /etc/cleat/fence-tls, readOnly: true}
    {{- end }}
    {{- end }}
    {{- include "cleat.extra" (list (ternary $root.Values.csi.controller $root.Values.csi $controller).extraVolumeMounts 4) }}
{{- end -}}

{{/* Volumes of the driver's container: (list $ services) */}}
{{- define "cleat.csi.volumes" -}}
{{- $root := index . 0 -}}
{{- $services := index . 1 -}}
- name: state
  hostPath: {path: {{ include "cleat.csi.state" . }}, type: DirectoryOrCreate}
- name: pool
  # A configured directory must exist: if it were created while its disk is not
  # mounted, a new pool would start in the wrong place.
  hostPath: {path: {{ include "cleat.csi.poolParent" $root }}, type: {{ ternary "Directory" "DirectoryOrCreate" (ne $root.Values.csi.pool.hostPath "") }}}
- name: kubelet-plugins
  hostPath: {path: {{ $root.Values.kubeletDir }}/plugins, type: Directory}
- name: kubelet-pods
  hostPath: {path: {{ $root.Values.kubeletDir }}/pods, type: Directory}
- name: dev
  hostPath: {path: /dev, type: Directory}
- name: sys
  hostPath: {path: /sys, type: Directory}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- if ne $services "controller" }}
- name: registration
  hostPath: {path: {{ $root.Values.kubeletDir }}/plugins_registry, type: Directory}
{{- end }}
{{- if eq $services "all" }}
- name: socket
  hostPath: {path: {{ include "cleat.csi.socketDir" $root }}, type: DirectoryOrCreate}
{{- else if eq $services "controller" }}
- name: socket
  emptyDir: {}
{{- end }}
{{- if $root.Values.csi.addons.enabled }}
- name: addons
  emptyDir: {}
{{- if ne $services "all" }}
- name: fence
  hostPath: {path: {{ include "cleat.csi.dir" $root }}/fence, type: DirectoryOrCreate}
{{- end }}
{{- with $root.Values.csi.addons.tlsSecret }}
- name: fence-tls
  secret: {secretName: {{ . }}, defaultMode: 256} # 0400
{{- end }}
{{- end }}
{{- end -}}

{{/* Node of the pod to which the caller's token is bound (Kubernetes 1.30 and later). */}}
{{- define "cleat.policy.node" -}}
- {name: node, expression: 'request.userInfo.?extra[?"authentication.kubernetes.io/node-name"][?0].orValue("")'}
{{- end -}}

{{/* Refuses tokens that are not bound to a node: (the user) */}}
{{- define "cleat.policy.bound" -}}
- expression: variables.node != ""
  reason: Forbidden
  message: '{{ . }} can write only with a token that is bound to a pod on a node; this request has no authentication.kubernetes.io/node-name'
{{- end -}}
