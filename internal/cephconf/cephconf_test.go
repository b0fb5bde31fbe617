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
	all, err := Parse([]byte(`[{"clusterID":"rook-ceph","monitors":["10.0.0.1:6789","[fd00::1]:3300"],"cephFS":{"netNamespaceFilePath":"","subvolumeGroup":"tenant","radosNamespace":"records","kernelMountOptions":"","fuseMountOptions":""},"rbd":{"netNamespaceFilePath":"","radosNamespace":"tenant","mirrorDaemonCount":0},"nfs":{},"readAffinity":{"enabled":false,"crushLocationLabels":null}}]`))
	if err != nil {
		t.Fatal(err)
	}
	want := Clusters{{ID: "rook-ceph", Monitors: []string{"10.0.0.1:6789", "[fd00::1]:3300"}, RBD: RBD{RadosNamespace: "tenant"}, CephFS: CephFS{SubvolumeGroup: "tenant", RadosNamespace: "records"}}}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if c := (CephFS{}); c.Group() != "csi" || c.Namespace() != "csi" {
		t.Errorf("by default the group is %s, the namespace %s", c.Group(), c.Namespace())
	}
	if c := all[0].CephFS; c.Group() != "tenant" || c.Namespace() != "records" {
		t.Errorf("the group is %s, the namespace %s", c.Group(), c.Namespace())
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
	for key, user := range map[string]string{"userKey": "userID", "adminKey": "adminID"} {
		if _, _, err := FromSecrets(map[string]string{key: "AQ=="}); !errors.Is(err, errs.Invalid) || strings.Contains(err.Error(), "AQ==") || !strings.Contains(err.Error(), user) {
			t.Errorf("%s alone: %v; want Invalid with %s, without the key", key, err, user)
		}
	}
	// A Secret of ceph-csi for CephFS can have both users: the node's come first.
	both := map[string]string{"userID": "node", "userKey": "AQ==", "adminID": "admin", "adminKey": "AR=="}
	if c, _, err := FromSecrets(both); err != nil || c != (Credentials{User: "node", Key: "AQ=="}) {
		t.Errorf("secrets with two users: %v, %v", c, err)
	}
	if c, given, err := FromSecrets(map[string]string{"adminID": "client.admin", "adminKey": "AR=="}); err != nil || !given || c != (Credentials{User: "admin", Key: "AR=="}) {
		t.Errorf("secrets of a controller for CephFS: %v, %t, %v", c, given, err)
	}
}

func TestReadCredentials(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadCredentials(dir); err == nil || !strings.Contains(err.Error(), "userID") {
		t.Errorf("an empty directory: %v", err)
	}
	for _, keys := range [][2]string{{"adminID", "adminKey"}, {"userID", "userKey"}} { // the last is the first choice
		user := "of-" + keys[0]
		for i, text := range []string{user + "\n", "AQ==\n"} {
			if err := os.WriteFile(filepath.Join(dir, keys[i]), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if c, err := ReadCredentials(dir); err != nil || c != (Credentials{User: user, Key: "AQ=="}) {
			t.Errorf("ReadCredentials: %v, %v", c, err)
		}
	}
}
