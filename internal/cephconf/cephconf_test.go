package cephconf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
)

func TestParse(t *testing.T) {
	// as Rook writes it
	all, err := Parse([]byte(`[{"clusterID":"rook-ceph","monitors":["10.0.0.1:6789","[fd00::1]:3300"],"cephFS":{"netNamespaceFilePath":"","subvolumeGroup":"","kernelMountOptions":"","fuseMountOptions":""},"rbd":{"netNamespaceFilePath":"","radosNamespace":"tenant","mirrorDaemonCount":0},"nfs":{},"readAffinity":{"enabled":false,"crushLocationLabels":null}}]`))
	if err != nil {
		t.Fatal(err)
	}
	want := Clusters{{ID: "rook-ceph", Monitors: []string{"10.0.0.1:6789", "[fd00::1]:3300"}, RBD: RBD{RadosNamespace: "tenant"}}}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := all.Find("rook-ceph"); err != nil {
		t.Error(err)
	}
	if _, err := all.Find("other"); !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "rook-ceph") {
		t.Errorf("an unknown cluster: %v; want NotFound with the known ones", err)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``: "not JSON", `{}`: "not JSON",
		`[{"monitors":["a"]}]`:                   "no clusterID",
		`[{"clusterID":"a"}]`:                    "no monitors",
		`[{"clusterID":"a","monitors":["x y"]}]`: "HOST:PORT",
		`[{"clusterID":"a","monitors":[""]}]`:    "HOST:PORT",
		`[{"clusterID":"a","monitors":["b"]},{"clusterID":"a","monitors":["b"]}]`: "two entries",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%s): %v; want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`[{"clusterID":"a","monitors":["10.0.0.1:6789"]}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := Parse(data)
		for _, c := range all {
			if c.ID == "" || len(c.Monitors) == 0 {
				t.Errorf("Parse(%q) accepts %+v", data, c)
			}
		}
		if err != nil && all != nil {
			t.Errorf("Parse(%q) returns clusters and %v", data, err)
		}
	})
}

func TestCredentials(t *testing.T) {
	c, given, err := FromSecrets(map[string]string{"userID": "client.node", "userKey": "AQ=="})
	if err != nil || !given || c != (Credentials{User: "node", Key: "AQ=="}) {
		t.Errorf("FromSecrets: %v, %t, %v", c, given, err)
	}
	for _, format := range []string{"%v", "%s", "%+v", "%#v", "%q"} {
		if text := fmt.Sprintf(format, c); strings.Contains(text, "AQ==") {
			t.Errorf("%s prints the key: %s", format, text)
		}
	}
	if _, given, err := FromSecrets(map[string]string{"other": "x"}); given || err != nil {
		t.Errorf("secrets without credentials: %t, %v", given, err)
	}
	if _, _, err := FromSecrets(map[string]string{"userKey": "AQ=="}); !errors.Is(err, errs.Invalid) || strings.Contains(err.Error(), "AQ==") {
		t.Errorf("a key without its user: %v; want Invalid, without the key", err)
	}
}

func TestReadCredentials(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadCredentials(dir); err == nil || !strings.Contains(err.Error(), "userID") {
		t.Errorf("an empty directory: %v", err)
	}
	for name, text := range map[string]string{"userID": "csi-rbd-provisioner\n", "userKey": "AQ==\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := ReadCredentials(dir); err != nil || c != (Credentials{User: "csi-rbd-provisioner", Key: "AQ=="}) {
		t.Errorf("ReadCredentials: %v, %v", c, err)
	}
}
