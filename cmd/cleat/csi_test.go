package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	testdriver "github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

// The socket is accessible to --socket-group; by default only to root.
func TestSocketGroup(t *testing.T) {
	cleat := testkit.Build(t, testkit.Cleat)
	const games = "60" // any group that is not root's
	for name, c := range map[string]struct {
		flags []string
		mode  fs.FileMode
		gid   uint32
	}{
		"root only": {nil, 0o600, 0},
		"a group":   {[]string{"--socket-group", games}, 0o660, 60},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := testdriver.Start(t, cleat, dir, "csi", append(c.flags, "--pool", filepath.Join(dir, "pool"))...)
			info := testkit.Value(os.Stat(p.Socket))(t)
			if got := info.Mode().Perm(); got != c.mode {
				t.Errorf("the socket has mode %o, want %o", got, c.mode)
			}
			if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Gid != c.gid {
				t.Errorf("the socket belongs to %+v, want group %d", info.Sys(), c.gid)
			}
		})
	}
}
