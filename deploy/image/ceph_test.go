package image

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/deploy/image/oci"
	"github.com/cleatproject/cleat/test/testkit"
)

// The image of the controller of Ceph volumes has Ceph's libraries of a current
// release, the libraries that these need, and no program.
func TestCephBase(t *testing.T) {
	p := testkit.Value(inspect(t.Context(), built.cleat, "", variants()[Default]))(t)
	files, packages, err := Base(t.Context(), Ceph, p.architecture, "", nil)
	testkit.Must(t, err)
	var size int64
	var names []string
	for _, f := range files {
		if dir, name := path.Split(f.Path); (dir == "/usr/bin/" || dir == "/usr/sbin/") && name != "" {
			t.Errorf("program %s", f.Path)
		}
		names = append(names, path.Base(f.Path))
	}
	for _, want := range []string{"librados.so.2", "librbd.so.1", "libcephfs.so.2", "libceph-common.so.2", "libstdc++.so.6", "os-release"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing", want)
		}
	}
	for _, f := range files {
		if f.Content != nil {
			size += sizeOf(t, f)
		}
	}
	t.Logf("%.1f MB of %d packages", float64(size)/1e6, len(packages))
	if size > 110e6 { // a third is ICU's data, which libnbd needs through libxml2
		t.Errorf("the packages' layer has %d bytes: which library is not needed?", size)
	}
	// Clients of earlier releases cannot use keys of type aes256k (from 20.2.4).
	if !slices.ContainsFunc(packages, func(s string) bool { return strings.HasPrefix(s, "librados2=2") }) {
		t.Errorf("no librados of Ceph 20 or later among packages %q", packages)
	}
}

func sizeOf(t *testing.T, f oci.File) int64 {
	t.Helper()
	r, size, err := f.Content()
	testkit.Must(t, err)
	testkit.Must(t, r.Close())
	return size
}
