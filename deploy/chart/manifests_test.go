package chart

import (
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// manifests returns the objects of each rendered file.
func manifests(t *testing.T) map[string][]object {
	t.Helper()
	files := testkit.Value(filepath.Glob("../manifests/*.yaml"))(t)
	all := map[string][]object{}
	for _, file := range files {
		if !strings.HasSuffix(file, ".values.yaml") {
			all[filepath.Base(file)] = decode(t, string(read(t, file)))
		}
	}
	if len(all) < 5 {
		t.Fatalf("found only %d files", len(all))
	}
	return all
}

// While a StorageClass exists without its CSIDriver, pods are placed without a
// capacity check, and VolumeAttachments are created that no controller handles.
func TestManifestsCreateCSIDriverFirst(t *testing.T) {
	found := 0
	for file, all := range manifests(t) {
		if len(of[storagev1.StorageClass](all)) == 0 {
			continue
		}
		found++
		if all[0].Kind != "CSIDriver" {
			t.Errorf("%s starts with %v", file, all[0])
		}
	}
	if found < 3 {
		t.Errorf("only %d files have a StorageClass", found)
	}
}

// kubectl delete -f of one file must not delete the namespace of the others.
func TestManifestsContainNoNamespace(t *testing.T) {
	for file, all := range manifests(t) {
		if n := len(of[corev1.Namespace](all)); n > 0 != (file == "namespace.yaml") {
			t.Errorf("%s has %d namespaces: deleting it deletes the pods of all files", file, n)
		}
	}
}
