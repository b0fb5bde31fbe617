package unixsock

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestParseEndpoint(t *testing.T) {
	for endpoint, want := range map[string]string{
		"unix:///run/cleat/csi/csi.sock": "/run/cleat/csi/csi.sock",
		"unix:/run/x.sock":               "/run/x.sock",
		"/run/x.sock":                    "/run/x.sock",
		"/run/a:b.sock":                  "/run/a:b.sock",
		"unix:///run/%20 x.sock":         "/run/%20 x.sock",
	} {
		if got, err := ParseEndpoint(endpoint); err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", endpoint, got, err, want)
		}
	}
	for endpoint, want := range map[string]string{
		"":                   "empty",
		"run/x.sock":         "relative",
		"x.sock":             "relative",
		"./a:b.sock":         "relative",
		"unix:x.sock":        "not absolute",
		"unix://run/x.sock":  "unix:///run/x.sock",
		"unix://":            "relative",
		"unix:":              "not absolute",
		"tcp://1.2.3.4:9000": "is not a UNIX socket",
		"UNIX:///x":          "is not a UNIX socket",
		"dns:///x":           "is not a UNIX socket",
		"unix:///run/":       "directory",
		"unix:////run/x":     `use "/run/x"`,
		"/run/../x.sock":     `use "/x.sock"`,
		"/run/x\x00.sock":    "NUL",
		"/":                  "directory",
	} {
		if got, err := ParseEndpoint(endpoint); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %q, %v; want an error with %q", endpoint, got, err, want)
		}
	}
}

func TestDialLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	testkit.Must(t, os.Mkdir(dir, 0o755))
	handle := testkit.Open(os.Open(dir))(t)
	l := testkit.Open(net.Listen("unix", short(handle, "s.sock")))(t)
	if !answers(t, l, filepath.Join(dir, "s.sock")) {
		t.Error("no answer")
	}
	testkit.WantError(t, "Dial", testkit.Err(Dial(t.Context(), filepath.Join(dir, strings.Repeat("e", 107)))), ErrTooLong)
	testkit.WantError(t, "Dial", testkit.Err(Dial(t.Context(), filepath.Join(dir, "absent", "s.sock"))), os.ErrNotExist)
}

// dialAs connects as another user: threads have their own credentials. The
// thread ends with the goroutine, since it is never unlocked.
func dialAs(t *testing.T, uid int, path string) net.Conn {
	t.Helper()
	type dialled struct {
		c   net.Conn
		err error
	}
	out := make(chan dialled)
	go func() {
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			out <- dialled{nil, errno}
			return
		}
		c, err := net.Dial("unix", path)
		out <- dialled{c, err}
	}()
	got := <-out
	if got.err != nil {
		t.Fatalf("connect as user %d: %v", uid, got.err)
	}
	t.Cleanup(func() { _ = got.c.Close() })
	return got.c
}

func TestAllowUIDs(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.Chmod(filepath.Dir(dir), 0o755))
	path := filepath.Join(dir, "s.sock")
	var refused []uint32
	inner := listenAt(t, Address{Path: path, DirMode: 0o755, Mode: 0o666})
	l := AllowUIDs(inner, func(c Credentials) { refused = append(refused, c.UID) }, 1000, OverflowUID, invalidUID)
	for _, uid := range []int{1001, OverflowUID, 1000, 1002, 0} {
		dialAs(t, uid, path)
	}
	for _, want := range []uint32{1000, 0} {
		c := testkit.Value(l.Accept())(t)
		if who, err := PeerCredentials(c); err != nil || who.UID != want || who.PID != int32(os.Getpid()) {
			t.Errorf("got %+v, %v; want uid %d", who, err, want)
		}
		_ = c.Close()
	}
	if !slices.Equal(refused, []uint32{1001, OverflowUID, 1002}) {
		t.Errorf("refused %v", refused)
	}
	if l.(*uidListener).allows(invalidUID) {
		t.Error("the invalid uid is allowed")
	}
	_ = inner.Close()
	testkit.WantError(t, "after Close", testkit.Err(l.Accept()), net.ErrClosed)
}

func TestPeerCredentialsNeedASocket(t *testing.T) {
	one, two := net.Pipe()
	defer func() { _, _ = one.Close(), two.Close() }()
	testkit.WantError(t, "a pipe has credentials", testkit.Err(PeerCredentials(one)), nil)
}
