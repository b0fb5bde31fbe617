// Package configmap keeps the state of a store.Shared in a Kubernetes
// ConfigMap, so that a controller finds it on any node.
//
// binaryData["state"] is a gzipped JSON document, for support:
//
//	kubectl get configmap NAME -o jsonpath='{.binaryData.state}' | base64 -d | gunzip
//
// A write replaces the ConfigMap of one resourceVersion, so it is atomic: of two
// concurrent writers one fails. Users who can read ConfigMaps read the state: it
// must have no secrets.
//
// The service account needs, in the namespace of the ConfigMap:
//
//	rules:
//	- {apiGroups: [""], resources: [configmaps], verbs: [create]}
//	- {apiGroups: [""], resources: [configmaps], resourceNames: [NAME], verbs: [get, update, watch]}
//
// Without watch, each comparison of the controller reads the ConfigMap.
//
// The first rule has no resourceNames: the API server does not know the name of
// an object when it authorizes its creation.
//
// Capacity: a ConfigMap has at most 1 MiB. Of records of 600 bytes of JSON, with
// four random UUIDs and another one in the key, about 8,500 fit: each has 117
// bytes after compression. Spare keeps 42 % for changes of records, such
// as grants, and for deletions.
package configmap
