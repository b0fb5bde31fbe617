package cephtest_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
)

// Two clusters at once, one of them shared by what tests do to a cluster.
func TestCluster(t *testing.T) {
	t.Run("other address", func(t *testing.T) {
		t.Parallel()
		c := cephtest.Start(t, cephtest.Options{Addr: netip.MustParseAddr("127.0.0.2"), BlockSize: 4 << 30})
		if got := testkit.Value(c.Command("fsid"))(t); strings.TrimSpace(got) != c.FSID() {
			t.Errorf("fsid %q, want %s", got, c.FSID())
		}
	})
	t.Run("restarts", func(t *testing.T) {
		t.Parallel()
		dir := testkit.Dir(t)
		c := testkit.Value(cephtest.Run(dir, cephtest.Options{FS: "files"}))(t)
		t.Cleanup(c.Stop)
		testkit.Must(t, c.CreatePool("images"))
		key := testkit.Value(c.User("node", "mon", "profile rbd", "osd", "profile rbd pool=images"))(t)
		again := testkit.Value(c.User("node", "mon", "allow r", "osd", "profile rbd pool=images"))(t)
		if key == "" || key != again {
			t.Errorf("the key of one user is %q, then %q", key, again)
		}
		keyring := filepath.Join(dir, "node.keyring")
		testkit.Must(t, os.WriteFile(keyring, []byte("[client.node]\nkey = "+key+"\n"), 0o600))
		testkit.Value(c.RBD("create", "images/a", "--size", "16M"))(t)

		testkit.Must(t, c.StopOSD())
		testkit.Must(t, c.StartOSD())
		c.StopMon()
		testkit.Must(t, c.StartMon())
		if got := testkit.Value(c.RBD("ls", "images", "--id", "node", "--keyring", keyring))(t); got != "a\n" {
			t.Errorf("after restarts the images are %q, want a", got)
		}
		testkit.Must(t, c.StopMDS())
		testkit.Must(t, c.StartMDS())
		testkit.Value(c.Command("fs", "subvolume", "create", "files", "a"))(t)
		c.Stop()
		c.Stop()
	})
}
