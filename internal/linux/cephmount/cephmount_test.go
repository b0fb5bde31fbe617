package cephmount_test

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/cephmount"
	"github.com/cleatproject/cleat/internal/linux/libceph"
)

const secret = "AQBkZWFkYmVlZjAxMjM0NTY3ODlhYmNkZWY="

func spec(change func(*cephmount.Spec)) cephmount.Spec {
	s := cephmount.Spec{
		Client: libceph.Client{Monitors: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6789")}, User: "node", Secret: secret},
		FS:     "files", Path: "/volumes/csi/v/1",
	}
	change(&s)
	return s
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		change func(*cephmount.Spec)
		want   string
	}{
		{func(*cephmount.Spec) {}, "name=node,key=k,noshare,mds_namespace=files"},
		{func(s *cephmount.Spec) { s.FS, s.ReadOnly = "", true }, "name=node,key=k,noshare"},
		{func(s *cephmount.Spec) {
			s.Monitors = append(s.Monitors, netip.MustParseAddrPort("[2001:db8::1]:3300"))
		}, "name=node,key=k,noshare,ms_mode=prefer-crc,mds_namespace=files"},
	} {
		if got := cephmount.Options(spec(c.change), "k"); got != c.want {
			t.Errorf("options %s, want %s", got, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	if err := cephmount.Check(spec(func(*cephmount.Spec) {})); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*cephmount.Spec){
		"no monitors":        func(s *cephmount.Spec) { s.Monitors = nil },
		"no user":            func(s *cephmount.Spec) { s.User = "" },
		"option in the user": func(s *cephmount.Spec) { s.User = "node,recover_session=clean" },
		"option in the name": func(s *cephmount.Spec) { s.FS = "files,recover_session=clean" },
		"no key":             func(s *cephmount.Spec) { s.Secret = "" },
		"not a key":          func(s *cephmount.Spec) { s.Secret = "%" },
		"relative path":      func(s *cephmount.Spec) { s.Path = "volumes" },
	} {
		err := cephmount.Check(spec(change))
		if errs.KindOf(err) != errs.Invalid || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
	}
}

func TestExplain(t *testing.T) {
	s := spec(func(*cephmount.Spec) {})
	if err := cephmount.Explain(s, nil); err != nil {
		t.Error(err)
	}
	for errno, want := range map[error]struct {
		kind errs.Kind
		word string
	}{
		unix.ENOENT:       {errs.NotFound, "directory"},
		unix.EACCES:       {errs.Precondition, "client.node"},
		unix.EPERM:        {errs.Unauthenticated, "client.node"},
		unix.EHOSTUNREACH: {errs.Unavailable, "metadata server"},
		unix.ETIMEDOUT:    {errs.Unavailable, "192.0.2.1:6789"},
		unix.EINVAL:       {errs.Precondition, "kernel log"},
		unix.ENOPKG:       {errs.Precondition, "authenc and cts"},
		unix.ENOMEM:       {errs.Internal, "mount"},
	} {
		err := cephmount.Explain(s, errno)
		if errs.KindOf(err) != want.kind || !strings.Contains(err.Error(), want.word) || !errors.Is(err, errno) {
			t.Errorf("%v: %v, want %v with %q", errno, err, want.kind, want.word)
		}
	}
}

// The texts are those of Linux 6.1 and 6.12, of Linux 5.11, and broken ones.
func TestParseStatus(t *testing.T) {
	for text, want := range map[string]cephmount.Status{
		"instance: client.4184 (3)198.51.100.11:0/3473138175\nblocklisted: false\n": {Instance: "198.51.100.11:0/3473138175"},
		"instance: client.4185 (3)[2001:db8::1]:0/2187871937\nblocklisted: true\n":  {Instance: "[2001:db8::1]:0/2187871937", Blocklisted: true},
		"instance: client.7 198.51.100.11:0/7\nblacklisted: true\n":                 {Instance: "198.51.100.11:0/7", Blocklisted: true},
		"":                                {},
		"instance:\nblocklisted: maybe\n": {},
	} {
		if got := cephmount.ParseStatus(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add("instance: client.4184 (3)198.51.100.11:0/3473138175\nblocklisted: true\n")
	f.Fuzz(func(t *testing.T, text string) {
		s := cephmount.ParseStatus(text)
		if s.Blocklisted && !strings.Contains(text, "listed") || !strings.Contains(text, s.Instance) || strings.ContainsAny(s.Instance, " \n") {
			t.Errorf("%q: %+v", text, s)
		}
	})
}

// A name from a record never leads out of the directory of clients.
func FuzzIsClient(f *testing.F) {
	for _, name := range []string{"626f01d8-e95a-466f-baec-60484a668125.client4184", "../x.client1", "a/b.client1", ".client1", ""} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if cephmount.IsClient(name) && (filepath.Base(name) != name || !strings.Contains(name, ".client")) {
			t.Errorf("%q is accepted", name)
		}
	})
}
