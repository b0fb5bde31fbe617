{{/* Rules of the roles. */}}
{{- define "cleat.rules.provisioner" -}}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch, update]}
- {apiGroups: [storage.k8s.io], resources: [storageclasses], verbs: [get, list, watch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots], verbs: [get, list, watch, update]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents], verbs: [get]}
{{- if ne .Values.csi.mode "perNode" }}
- {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [csinodes], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattributesclasses], verbs: [get]}
{{- end }}
{{- end -}}

{{- define "cleat.rules.resizer" -}}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, patch]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [persistentvolumeclaims/status], verbs: [patch]}
{{- if ne .Values.csi.mode "perNode" }}
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattributesclasses], verbs: [get, list, watch]}
{{- end }}
{{- end -}}

{{- define "cleat.rules.snapshotter" -}}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotclasses], verbs: [get, list, watch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents], verbs: [get, list, watch, update, patch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents/status], verbs: [update, patch]}
{{- if include "cleat.groups" . }}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotclasses], verbs: [get, list, watch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotcontents], verbs: [get, list, watch, update, patch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotcontents/status], verbs: [update, patch]}
{{- end }}
{{- end -}}

{{- define "cleat.rules.attacher" -}}
{{- /* nvidia-external-attacher handles SVVolumeAttachments instead. */}}
{{- $dpu := include "cleat.spdk.account" . | empty | not }}
{{- $group := ternary "storage.dpu.nvidia.com" "storage.k8s.io" $dpu }}
{{- $resource := ternary "svvolumeattachments" "volumeattachments" $dpu -}}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, patch]}
- {apiGroups: [storage.k8s.io], resources: [csinodes], verbs: [get, list, watch]}
- {apiGroups: [{{ $group }}], resources: [{{ $resource }}], verbs: [get, list, watch, patch]}
- {apiGroups: [{{ $group }}], resources: [{{ $resource }}/status], verbs: [patch]}
{{- end -}}

{{/* Of the sidecars, and of the controller, in their namespace. */}}
{{- define "cleat.rules.namespace" -}}
{{- $perNode := eq .Values.csi.mode "perNode" }}
{{- $spdk := include "cleat.spdk" . }}
{{- $credentials := include "cleat.spdk.credentials" . }}
{{- $external := include "cleat.external" . }}
{{- if and (or $spdk $external) (not (include "cleat.spdk.account" .)) }}
# The controller's state. create cannot be limited by name.
- {apiGroups: [""], resources: [configmaps], verbs: [create]}
- {apiGroups: [""], resources: [configmaps], verbs: [get, update, watch], resourceNames: [{{ include "cleat.state" . }}]}
{{- end }}
{{- if include "cleat.ceph" . }}
# Classes made for ceph-csi name it; the driver has its own.
- {apiGroups: [""], resources: [secrets], verbs: [get], resourceNames: [{{ .Values.csi.ceph.controllerSecret }}]}
{{- else if $spdk }}
{{- if and .Values.csi.spdk.secret (not $credentials) }}
# Classes made for spdk-csi name it; the driver has its own.
- {apiGroups: [""], resources: [secrets], verbs: [get], resourceNames: [{{ .Values.csi.spdk.secret }}]}
{{- end }}
{{- else if not $external }}
- {apiGroups: [storage.k8s.io], resources: [csistoragecapacities], verbs: [get, list, watch, create, update, patch, delete]}
# The pod's owner owns the CSIStorageCapacities.
- {apiGroups: [""], resources: [pods], verbs: [get]}
{{- if not $perNode }}
- {apiGroups: [apps], resources: [replicasets], verbs: [get]}
{{- end }}
{{- end }}
{{- if include "cleat.bootReports" . }}
# The boots that nodes report.
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [list]}
{{- end }}
{{- if include "cleat.controller.elects" . }}
# Election of the replica that serves, with its sidecars.
{{ include "cleat.rules.leases" (list (include "cleat.controller.lease" .)) }}
{{- else if not $credentials }}
{{- /* As the sidecars sanitise it for the names of their leases. */}}
{{- $lease := regexReplaceAll "[^a-zA-Z0-9-]" .Values.csi.driverName "-" }}
{{- $leases := list (printf "external-resizer-%s" $lease) }}
{{- if not $perNode }}
{{- $leases = concat $leases (list $lease (printf "external-attacher-leader-%s" $lease) (printf "external-snapshotter-leader-%s" $lease)) }}
{{- end }}
# Leader election of the sidecars.
{{ include "cleat.rules.leases" $leases }}
{{- end }}
{{- end -}}

{{/* Leader election with these leases. */}}
{{- define "cleat.rules.leases" -}}
# create cannot be limited by name.
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, update]
  resourceNames:
    {{- toYaml . | nindent 4 }}
{{- end -}}

{{- define "cleat.rules.boots" -}}
# The Lease of each node with its boot. The admission policy leaves a node its own.
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}
{{- end -}}

{{- define "cleat.rules.placement" -}}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch, patch]}
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
- {apiGroups: [""], resources: [nodes, persistentvolumes], verbs: [get]}
- {apiGroups: [storage.k8s.io], resources: [storageclasses], verbs: [get]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots, volumesnapshotcontents], verbs: [get]}
- {apiGroups: [""], resources: [events], verbs: [get, create, patch]}
{{- end -}}

{{/* Of the controller of lost nodes, in the whole cluster. */}}
{{- define "cleat.rules.takeoverCluster" -}}
# It cordons and taints the node, and deletes its pods.
- {apiGroups: [""], resources: [nodes], verbs: [get, list, update]}
- {apiGroups: [""], resources: [pods], verbs: [list, delete]}
# Which volumes the node has.
- {apiGroups: [""], resources: [persistentvolumeclaims, persistentvolumes], verbs: [get]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments], verbs: [list]}
- {apiGroups: [storage.k8s.io], resources: [csidrivers], verbs: [get]}
# The addresses of the API server, which are never fenced.
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get], resourceNames: [kubernetes]}
{{- $byDriver := false }}
{{- range .Values.takeover.coverage.backends }}
{{- if .networkFenceClass }}{{ $byDriver = true }}{{ end }}
{{- end }}
{{- if $byDriver }}
# Fences by CSI drivers. Those of others are read, and never changed.
- {apiGroups: [csiaddons.openshift.io], resources: [networkfences], verbs: [get, list, create, update, delete]}
- {apiGroups: [csiaddons.openshift.io], resources: [networkfenceclasses, csiaddonsnodes], verbs: [list]}
{{- end }}
{{- end -}}

{{/* The same, in the release's namespace. */}}
{{- define "cleat.rules.takeover" -}}
# update: its finalizer.
- {apiGroups: [remediation.cleat.dev], resources: [storagefenceremediations], verbs: [get, list, watch, update]}
- {apiGroups: [remediation.cleat.dev], resources: [storagefenceremediations/status], verbs: [update]}
- {apiGroups: [""], resources: [events], verbs: [get, create, patch]}
{{ include "cleat.rules.leases" (list (printf "%s-takeover" (include "cleat.fullname" .))) }}
{{- end -}}

{{- define "cleat.rules.sriovDaemon" -}}
- {apiGroups: [sriovnetwork.openshift.io], resources: [sriovnetworknodestates], verbs: [get, list, watch]}
{{- if eq .Values.sriov.daemon.mode "apply" }}
- {apiGroups: [sriovnetwork.openshift.io], resources: [sriovnetworknodestates/status], verbs: [patch]}
{{- end }}
{{- end -}}

{{- define "cleat.rules.addonsCluster" -}}
# To authenticate the caller.
- {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
{{- end -}}

{{/* (list $ component driverName secretName) */}}
{{- define "cleat.rules.addons" -}}
- {apiGroups: [csiaddons.openshift.io], resources: [csiaddonsnodes], verbs: [get, watch, create, update]}
- {apiGroups: [""], resources: [pods], verbs: [get]}
- {apiGroups: [apps], resources: [replicasets], verbs: [get]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
{{ include "cleat.rules.leases" (list (printf "%s-csi-addons" (regexReplaceAll "[^a-zA-Z0-9-]" (index . 2) "-"))) }}
# It reads the Secret of the fence's class before it calls the driver.
- {apiGroups: [""], resources: [secrets], verbs: [get], resourceNames: [{{ index . 3 }}]}
{{- end -}}

{{- define "cleat.rules.snapshotMetadata" -}}
# To authenticate clients, and to ask whether they can read the snapshots.
- {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
- {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots, volumesnapshotcontents], verbs: [get]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotclasses], verbs: [get, list]}
{{- end -}}

{{- define "cleat.rules.snapshotController" -}}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch, update]}
# For --enable-distributed-snapshotting.
- {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotclasses], verbs: [get, list, watch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents], verbs: [get, list, watch, create, update, patch, delete]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents/status], verbs: [patch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots], verbs: [get, list, watch, update, patch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots/status], verbs: [update, patch]}
{{- if include "cleat.snapshotController.groups" . }}
# It creates and deletes the members of group snapshots.
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots], verbs: [create, delete]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotclasses], verbs: [get, list, watch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotcontents], verbs: [get, list, watch, create, update, patch, delete]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotcontents/status], verbs: [patch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshots], verbs: [get, list, watch, update, patch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshots/status], verbs: [update, patch]}
{{- end }}
{{- end -}}
