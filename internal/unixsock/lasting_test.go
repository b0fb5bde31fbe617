package unixsock

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// What another program has removed or replaced is created again; a live socket of
// another process and other files stay.
func TestRestore(t *testing.T) {
	dir := filepath.Join(testkit.Dir(t), "d")
	path := filepath.Join(dir, "s.sock")
	var other *net.UnixListener
	occupy := func() error {
		var err error
		other, err = net.ListenUnix("unix", &net.UnixAddr{Name: path + ".other", Net: "unix"})
		if err != nil {
			return err
		}
		other.SetUnlinkOnClose(false)
		return os.Rename(path+".other", path)
	}
	for name, c := range map[string]struct {
		do, undo func() error
		lost     PathState
		err      error
	}{
		"untouched":           {do: func() error { return nil }, lost: Ours},
		"removed":             {do: func() error { return os.Remove(path) }, lost: Missing},
		"renamed":             {do: func() error { return os.Rename(path, path+".moved") }, lost: Missing},
		"directory removed":   {do: func() error { return os.RemoveAll(dir) }, lost: Missing},
		"directory recreated": {do: func() error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)) }, lost: Missing},
		"dead socket":         {do: func() error { return errors.Join(occupy(), other.Close()) }, lost: Replaced},
		"live socket":         {do: occupy, undo: func() error { return other.Close() }, lost: Replaced, err: ErrLive},
		"file": {
			do:   func() error { return errors.Join(os.Remove(path), os.WriteFile(path, []byte("x"), 0o600)) },
			undo: func() error { return os.Remove(path) }, lost: Replaced, err: errors.ErrUnsupported,
		},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Must(t, os.RemoveAll(dir))
			l := testkit.Open(ListenLasting(t.Context(), Address{Path: path}))(t)
			accepted := make(chan error, 10)
			go func() { // one Accept over all restorations
				for {
					c, err := l.Accept()
					accepted <- err
					if err != nil {
						return
					}
					_ = c.Close()
				}
			}()
			testkit.Must(t, c.do())
			if err := l.Check(); (err == nil) != (c.lost == Ours) {
				t.Errorf("Check: %v", err)
			}
			lost, err := l.Restore(t.Context())
			if c.err != nil {
				if err == nil || c.err == ErrLive && !errors.Is(err, ErrLive) || l.Check() == nil {
					t.Errorf("while another file is there: %v", err)
				}
				testkit.Must(t, c.undo())
				if lost, err = l.Restore(t.Context()); lost == Ours {
					t.Errorf("nothing was restored: %v", err)
				}
			} else if lost != c.lost {
				t.Errorf("lost: %s, want %s", lost, c.lost)
			}
			testkit.Must(t, err, l.Check())
			testkit.Must(t, testkit.Value(Dial(t.Context(), path))(t).Close(), <-accepted)
			testkit.Must(t, l.Close())
			if err := <-accepted; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept after Close: %v", err)
			}
			if lost, err := l.Restore(t.Context()); lost != Ours || err != nil {
				t.Errorf("Restore after Close: %s, %v", lost, err)
			}
			testkit.WantError(t, "the socket after Close", testkit.Err(os.Lstat(path)), os.ErrNotExist)
		})
	}
}
