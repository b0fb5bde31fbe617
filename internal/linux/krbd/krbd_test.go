package krbd_test

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/internal/linux/krbd/krbdtest"
	"github.com/cleatproject/cleat/internal/linux/libceph"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const size = 1 << 20

func spec() krbd.Spec {
	return krbd.Spec{
		Client: libceph.Client{Monitors: []netip.AddrPort{netip.MustParseAddrPort(krbdtest.Monitor)}, User: krbdtest.User, Secret: krbdtest.Secret},
		Owner:  "cleat/test/", Pool: "p", Image: "i",
	}
}

func TestMap(t *testing.T) {
	m := krbdtest.New(t)
	k := m.Kernel()
	id := m.Create("p/ns/i", size)
	s := spec()
	s.Namespace = "ns"
	s.Monitors = append(s.Monitors, netip.MustParseAddrPort("[2001:db8::1]:3300"), netip.AddrPortFrom(netip.MustParseAddr("2001:db8::2"), 0))
	d := testkit.Value(k.Map(t.Context(), s))(t)
	want := krbd.Device{
		ID: 0, Path: d.Path, Major: d.Major, Minor: d.Minor, Size: size, Cluster: krbdtest.FSID, PoolID: 2, Pool: "p", Namespace: "ns",
		Image: "i", ImageID: id, Client: d.Client, Instance: d.Instance, Key: d.Key,
		Monitors: []string{krbdtest.Monitor, "[2001:db8::1]:3300", "[2001:db8::2]"},
	}
	want.InFlight, want.Completed = d.InFlight, d.Completed
	testkit.Diff(t, "the device", want, d)
	line := "192.0.2.1:6789,[2001:db8::1]:3300,[2001:db8::2] name=node,key=" + d.Key + ",noshare,ms_mode=prefer-crc,_pool_ns=ns p i -"
	if diff := cmp.Diff([]string{line}, m.Lines()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if !strings.HasPrefix(d.Key, "cleat/test/") {
		t.Errorf("the key is named %q", d.Key)
	}
	again := testkit.Value(k.Map(t.Context(), s))(t)
	if again.ID == d.ID || again.Key == d.Key || again.Instance == d.Instance {
		t.Errorf("mapped again as %+v, first as %+v", again, d)
	}
	f := testkit.Value(k.Open(d))(t)
	if err := k.Unmap(t.Context(), d); !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), "this process") {
		t.Errorf("Unmap of an open device: %v", err)
	}
	testkit.Must(t, f.Close(), k.Flush(t.Context(), d), k.SetReadOnly(again, true), k.Refresh(t.Context(), again), k.Unmap(t.Context(), d), k.Unmap(t.Context(), d))
	all := testkit.Value(k.List())(t)
	again.ReadOnly = true
	if len(all) == 1 {
		again.InFlight, again.Completed = all[0].InFlight, all[0].Completed
	}
	testkit.Diff(t, "the devices", []krbd.Device{again}, all)
	testkit.WantError(t, "Flush of an unmapped device", k.Flush(t.Context(), d), krbd.ErrGone)
	// The number is another map's now.
	s.ReadOnly = true
	reader := testkit.Value(k.Map(t.Context(), s))(t)
	if reader.ID != d.ID || !reader.MappedRO || !reader.ReadOnly {
		t.Errorf("mapped read-only as %+v", reader)
	}
	testkit.Must(t, k.Unmap(t.Context(), d))
	testkit.WantError(t, "SetReadOnly", k.SetReadOnly(reader, false), errs.Precondition)
	testkit.Must(t, k.Unmap(t.Context(), reader), k.Unmap(t.Context(), again))
}

func TestMapErrors(t *testing.T) {
	m := krbdtest.New(t)
	m.Create("p/i", size)
	for errno, kind := range map[unix.Errno]errs.Kind{
		unix.ENOENT: errs.NotFound, unix.EACCES: errs.Unauthenticated, unix.EPERM: errs.Unauthenticated, unix.ENXIO: errs.Precondition,
		unix.EROFS: errs.Precondition, unix.ESHUTDOWN: errs.Precondition, unix.ETIMEDOUT: errs.Unavailable, unix.ECONNREFUSED: errs.Unavailable,
		unix.EINVAL: errs.Precondition, unix.ENOSPC: errs.Exhausted, unix.ENOMEM: errs.Internal,
	} {
		m.Before = func(string, string) error { return &fs.PathError{Op: "write", Path: "x", Err: errno} }
		_, err := m.Kernel().Map(t.Context(), spec())
		if errs.KindOf(err) != kind || !errors.Is(err, errno) || !strings.Contains(err.Error(), "p/i") || strings.Contains(err.Error(), krbdtest.Secret) {
			t.Errorf("%v: %v; want kind %q, with the image", errno, err, kind)
		}
	}
}

func TestMapRefuses(t *testing.T) {
	m := krbdtest.New(t)
	for name, change := range map[string]func(*krbd.Spec){
		"option in the user":      func(s *krbd.Spec) { s.User = "a,secret=x" },
		"word in the pool":        func(s *krbd.Spec) { s.Pool = "p i" },
		"line in the image":       func(s *krbd.Spec) { s.Image = "i\n" },
		"snapshot":                func(s *krbd.Spec) { s.Image = "i@s" },
		"option in the namespace": func(s *krbd.Spec) { s.Namespace = "n,ro" },
		"namespace in the image":  func(s *krbd.Spec) { s.Image = "n/i" },
		"control":                 func(s *krbd.Spec) { s.Image = "i\x7f" },
		"no image":                func(s *krbd.Spec) { s.Image = "" },
		"long image":              func(s *krbd.Spec) { s.Image = strings.Repeat("x", 256) },
		"no user":                 func(s *krbd.Spec) { s.User = "" },
		"no monitor":              func(s *krbd.Spec) { s.Monitors = nil },
		"zone":                    func(s *krbd.Spec) { s.Monitors = []netip.AddrPort{netip.MustParseAddrPort("[fe80::1%eth0]:1")} },
		"no key":                  func(s *krbd.Spec) { s.Secret = "" },
		"not a key":               func(s *krbd.Spec) { s.Secret = "plain text" },
	} {
		s := spec()
		change(&s)
		_, err := m.Kernel().Map(t.Context(), s)
		testkit.WantError(t, name, err, errs.Invalid)
		if err != nil && strings.Contains(err.Error(), "plain text") {
			t.Errorf("the error has the key: %v", err)
		}
	}
	if lines := m.Lines(); len(lines) > 0 {
		t.Errorf("written: %q", lines)
	}
}

// The words of an accepted line are those of the specification.
func FuzzMap(f *testing.F) {
	f.Add("node", "pool", "", "image")
	f.Add("a,b", "p p", "n", "i@s")
	f.Fuzz(func(t *testing.T, user, pool, namespace, image string) {
		var line string
		k := krbd.Host()
		k.Sys = t.TempDir()
		testkit.Must(t, os.MkdirAll(filepath.Join(k.Sys, "bus/rbd"), 0o700))
		k.Write = func(_ context.Context, _, text string, _ kernelcall.Key) error { line = text; return unix.ENOENT }
		s := spec()
		s.User, s.Pool, s.Namespace, s.Image = user, pool, namespace, image
		if _, err := k.Map(t.Context(), s); err == nil {
			t.Error("mapped nothing")
		}
		if line == "" {
			return
		}
		words := strings.Split(line, " ")
		options := 3
		if namespace != "" {
			options++
		}
		if len(words) != 5 || words[2] != pool || words[3] != image || strings.Count(words[1], ",") != options-1 || strings.ContainsAny(line, "\n\x00") {
			t.Errorf("%q for %q %q %q %q", line, user, pool, namespace, image)
		}
	})
}

func TestNoDriver(t *testing.T) {
	k := krbd.Host()
	k.Sys = t.TempDir()
	k.Load = func(context.Context) error { return errors.New("module rbd not found") }
	_, err := k.Map(t.Context(), spec())
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "no RBD driver") || !strings.Contains(err.Error(), "module rbd not found") {
		t.Errorf("Map without the module: %v", err)
	}
	if all, err := k.List(); err != nil || len(all) > 0 {
		t.Errorf("List without the module: %v, %v", all, err)
	}
}
