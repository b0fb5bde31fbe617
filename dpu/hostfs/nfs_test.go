package hostfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

func TestNFSOptions(t *testing.T) {
	all, four, safe := []string{"4.2", "4.1", "4.0", "3"}, []string{"4.2", "4.1", "4.0"}, []string{"nosuid", "nodev"}
	with := func(more ...string) []string { return append(more, safe...) }
	for in, want := range map[string]nfsOptions{
		"":                                  {all, safe, false},
		"vers=4":                            {four, safe, false},
		"nfsvers=4.1":                       {[]string{"4.1"}, safe, false},
		"v3,nolock":                         {[]string{"3"}, with("nolock"), false},
		"v4.2,vers=4.2":                     {[]string{"4.2"}, safe, false},
		"vers=3,nfsvers=3":                  {[]string{"3"}, safe, false},
		"ro,soft,timeo=50":                  {all, with("soft", "timeo=50"), true},
		"ro,rw":                             {all, safe, false},
		"noatime,hard":                      {all, with("noatime", "hard"), false},
		"noexec,nosuid":                     {all, with("noexec", "nosuid"), false},
		"_netdev,defaults,nofail":           {all, safe, false},
		"rsize=1048576,port=2050,proto=tcp": {all, with("rsize=1048576", "port=2050", "proto=tcp"), false},
	} {
		got, err := parseNFSOptions([]string{in})
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(nfsOptions{})); err != nil || diff != "" {
			t.Errorf("%q: %v (-want +got)\n%s", in, err, diff)
		}
	}
	for _, in := range []string{
		"addr=192.0.2.1", "ADDR=192.0.2.1", "mountaddr=192.0.2.1", "mounthost=x", "clientaddr=192.0.2.1", "remount", "bind", "move", "shared", "context=x", "fscontext=x",
		"defcontext=x", "rootcontext=x", "seclabel", "suid", "dev", "sloppy", "vers=2", "vers=5", "vers=", "vers", "v2", "v4.3", "vers=3,vers=4.2", "minorversion=1", "bg", "retry=9",
		"user=x", "users", "fsc", "fsc=x", "source=other:/x", "loop", "a\x00b", "a\nb", "=x", strings.Repeat("x", 5000),
	} {
		if got, err := parseNFSOptions([]string{in}); !errors.Is(err, errs.Invalid) {
			t.Errorf("%.40q: %+v, %v; want %v", in, got, err, errs.Invalid)
		}
	}
}

// FuzzNFSOptions: accepted options never override the server, and end in the
// restricting attributes.
func FuzzNFSOptions(f *testing.F) {
	for _, s := range []string{"", "vers=4.1,hard", "addr=1", "ro,nolock", `a="b,addr=1"`, "x-y,v3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		o, err := parseNFSOptions(strings.Split(in, "|"))
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%q: %v is not of kind %v", in, err, errs.Invalid)
			}
			return
		}
		if n := len(o.kernel); n < 2 || !slices.Equal(o.kernel[n-2:], attributes()) || len(o.versions) == 0 {
			t.Errorf("%q: %+v", in, o)
		}
		for _, option := range o.kernel {
			name, _, _ := strings.Cut(strings.ToLower(option), "=")
			if slices.Contains([]string{"addr", "mountaddr", "mounthost", "clientaddr", "vers", "nfsvers", "suid", "dev", "remount", "context"}, name) {
				t.Errorf("%q: %s is left in %q", in, name, o.kernel)
			}
		}
	})
}

func TestNFSDevice(t *testing.T) {
	for want, a := range map[string]access.NFS{
		"192.0.2.1:/srv":         {Server: "192.0.2.1", Share: "/srv"},
		"192.0.2.1:/":            {Server: "192.0.2.1", Share: "/"},
		"192.0.2.1:/a/b":         {Server: "192.0.2.1", Share: "/", SubDir: "a/b"},
		"nfs.example:/srv/a":     {Server: "nfs.example", Share: "/srv", SubDir: "a"},
		"[2001:db8::1]:/srv/x y": {Server: "2001:db8::1", Share: "/srv", SubDir: "x y"},
	} {
		if got := nfsDevice(a); got != want {
			t.Errorf("nfsDevice(%+v) = %q, want %q", a, got, want)
		}
	}
	r := newRig(t)
	long := plan.MountSpec{NFS: &access.NFS{Server: "192.0.2.1", Share: "/" + strings.Repeat("x", 300)}}
	testkit.WantError(t, "Mount", r.Mount(t.Context(), name, long), errs.Invalid, "at most 255 are allowed")
	testkit.WantError(t, "Mount", r.Mount(t.Context(), name, plan.MountSpec{}), errs.Invalid, "no mount source")
	bad := plan.MountSpec{NFS: &access.NFS{Server: "192.0.2.1", Share: "/x", Options: []string{"addr=1"}}}
	testkit.WantError(t, "Mount", r.Mount(t.Context(), name, bad), errs.Invalid, "192.0.2.1:/x", "addr is not allowed")
}

// TestNFSTries checks the order of versions and addresses after errors.
func TestNFSTries(t *testing.T) {
	a, b := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1")
	create := func(errno unix.Errno) error { return fmt.Errorf("create: %w", errno) }
	refusal := errs.Errorf(errs.Precondition, "create: %w", unix.EINVAL)
	all := versionsOf("")
	for what, c := range map[string]struct {
		versions []string
		errs     map[string]error // by address and version, or either; nil: it works
		tried    string
		says     string
		is       error
	}{
		"the first":              {all, nil, "a4.2", "", nil},
		"older server":           {all, map[string]error{"4.2": create(unix.EPROTONOSUPPORT), "4.1": refusal}, "a4.2 a4.1 a4.0", "", nil},
		"version 3 only":         {all, map[string]error{"4.2": create(unix.EPROTONOSUPPORT), "4.1": create(unix.EPROTONOSUPPORT), "4.0": create(unix.EPROTONOSUPPORT)}, "a4.2 a4.1 a4.0 a3", "", nil},
		"other paths in 3":       {all, map[string]error{"4.2": create(unix.ENOENT)}, "a4.2 a3", "", nil},
		"in neither":             {all, map[string]error{"4.2": create(unix.ENOENT), "3": create(unix.EACCES)}, "a4.2 a3", "with version 4.2: create: no such file or directory (with version 3: create: permission denied)", unix.ENOENT},
		"not exported":           {all, map[string]error{"4.2": create(unix.EACCES)}, "a4.2", "create: permission denied", unix.EACCES},
		"given, refused":         {[]string{"4.1"}, map[string]error{"4.1": create(unix.EPROTONOSUPPORT)}, "a4.1", "create: protocol not supported", unix.EPROTONOSUPPORT},
		"given, no such path":    {[]string{"4.1"}, map[string]error{"4.1": create(unix.ENOENT)}, "a4.1", "create: no such file or directory", unix.ENOENT},
		"a misspelt option":      {all, map[string]error{"4.2": errs.Errorf(errs.Invalid, "mount option x: %w", unix.EINVAL)}, "a4.2", "mount option x", errs.Invalid},
		"first address is dead":  {all, map[string]error{"a": create(unix.ENETUNREACH)}, "a4.2 b4.2", "", nil},
		"refused at both":        {all, map[string]error{"a": create(unix.EHOSTUNREACH), "b": create(unix.ECONNREFUSED)}, "a4.2 b4.2", "create: connection refused", unix.ECONNREFUSED},
		"the second is no other": {all, map[string]error{"a": create(unix.EACCES)}, "a4.2", "permission denied", unix.EACCES},
		"no version fits":        {versionsOf("4"), map[string]error{"a": create(unix.EPROTONOSUPPORT)}, "a4.2 a4.1 a4.0", "with version 4.2: create: protocol not supported", unix.EPROTONOSUPPORT},
		"3 without locks": {all, map[string]error{"4.2": create(unix.EPROTONOSUPPORT), "4.1": create(unix.EPROTONOSUPPORT), "4.0": create(unix.EPROTONOSUPPORT), "3": errs.Errorf(errs.Precondition, "statd")},
			"a4.2 a4.1 a4.0 a3", "with version 3: statd (with version 4.2", errs.Precondition},
	} {
		t.Run(what, func(t *testing.T) {
			var tried []string
			o := nfsMount{Addrs: []netip.Addr{a, b}, Versions: c.versions}
			err := o.try(func(addr netip.Addr, version string) error {
				at := "a"
				if addr == b {
					at = "b"
				}
				tried = append(tried, at+version)
				if err := c.errs[at]; err != nil {
					return err
				}
				return c.errs[version]
			})
			if got := strings.Join(tried, " "); got != c.tried {
				t.Errorf("tried %s, want %s", got, c.tried)
			}
			if c.is == nil && err != nil || c.is != nil && (!errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("got %v, want %v that says %q", err, c.is, c.says)
			}
		})
	}
	if err := (nfsMount{Versions: all}).try(nil); !errors.Is(err, errs.Unavailable) {
		t.Errorf("without an address: %v", err)
	}
}

func TestLocks(t *testing.T) {
	for _, c := range []struct {
		version string
		options []string
		statd   bool
		ok      bool
	}{
		{"4.2", nil, false, true}, {"3", nil, true, true}, {"3", nil, false, false}, {"3", []string{"hard"}, false, false}, {"3", []string{"nolock"}, false, true},
		{"3", []string{"lock"}, false, true}, {"3", []string{"local_lock=all"}, false, true}, {"3", []string{"local_lock=flock"}, false, false},
	} {
		if err := checkLocks(c.version, c.options, func() (bool, error) { return c.statd, nil }); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
	err := checkLocks("3", nil, func() (bool, error) { return false, unix.ECONNREFUSED })
	testkit.WantError(t, "not known", nfs{}.explain(err), errs.Unavailable, "not known", "rpc.statd", "port mapper")
	if isUnreachable(err) {
		t.Errorf("it is an error of the NFS server: %v", err)
	}
}

// A port mapper that does not answer is no answer.
func TestStatdRuns(t *testing.T) {
	reply := func(port byte) []byte { return append(make([]byte, 27), port) }
	for name, c := range map[string]struct {
		answer        []byte
		closed        bool
		runs, unknown bool
	}{
		"runs":               {answer: reply(99), runs: true},
		"is not there":       {answer: reply(0)},
		"no port mapper":     {closed: true},
		"it does not answer": {unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			mapper := testkit.Value(net.ListenPacket("udp", "127.0.0.1:0"))(t)
			defer mapper.Close()
			if c.closed {
				testkit.Must(t, mapper.Close())
			}
			ctx, cancel := testkit.Context(t), context.CancelFunc(func() {})
			if c.unknown {
				ctx, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
			}
			defer cancel()
			if c.answer != nil {
				testkit.Go(t, func(context.Context) error {
					query := make([]byte, 512)
					_, from, err := mapper.ReadFrom(query)
					copy(c.answer[:4], query[:4]) // its id
					c.answer[7] = 1               // a reply
					return errors.Join(err, testkit.Err(mapper.WriteTo(c.answer, from)))
				})
			}
			runs, err := statdRuns(ctx, mapper.LocalAddr().String())
			if runs != c.runs || (err != nil) != c.unknown {
				t.Errorf("got %v, %v", runs, err)
			}
		})
	}
}

func TestNFSShown(t *testing.T) {
	r := newRig(t)
	at := func(addrs ...string) lookup {
		return func(context.Context, string, string) (all []netip.Addr, err error) {
			for _, a := range addrs {
				all = append(all, netip.MustParseAddr(a))
			}
			if addrs == nil {
				err = errors.New("no such host")
			}
			return all, err
		}
	}
	entry := func(fsType, source string, super ...string) mount.Entry {
		return mount.Entry{FSType: fsType, Source: source, Options: []string{"rw"}, SuperOptions: append(super, "addr=192.0.2.1")}
	}
	for what, c := range map[string]struct {
		server   string
		readOnly bool
		lookup   lookup
		e        mount.Entry
		want     bool
	}{
		"the same":                  {"nfs.example", false, nil, entry("nfs4", "nfs.example:/srv/a"), true},
		"version 3":                 {"nfs.example", false, nil, entry("nfs", "nfs.example:/srv/a"), true},
		"IPv6":                      {"2001:db8::1", false, nil, entry("nfs4", "[2001:db8::1]:/srv/a"), true},
		"another directory":         {"nfs.example", false, nil, entry("nfs4", "nfs.example:/srv/b"), false},
		"the directory above":       {"nfs.example", false, nil, entry("nfs4", "nfs.example:/srv"), false},
		"another type":              {"nfs.example", false, nil, entry("fuse.nfs", "nfs.example:/srv/a"), false},
		"read-only":                 {"nfs.example", false, nil, entry("nfs4", "nfs.example:/srv/a", "ro"), false},
		"read-only as wanted":       {"nfs.example", true, nil, entry("nfs4", "nfs.example:/srv/a", "ro"), true},
		"writable, not wanted so":   {"nfs.example", true, nil, entry("nfs4", "nfs.example:/srv/a"), false},
		"another name, same server": {"alias.example", false, at("192.0.2.9", "192.0.2.1"), entry("nfs4", "nfs.example:/srv/a"), true},
		"an address for a name":     {"192.0.2.1", false, nil, entry("nfs4", "nfs.example:/srv/a"), true},
		"another server":            {"other.example", false, at("192.0.2.2"), entry("nfs4", "nfs.example:/srv/a"), false},
		"another address":           {"192.0.2.2", false, nil, entry("nfs4", "nfs.example:/srv/a"), false},
	} {
		r.lookup = c.lookup
		n := testkit.Value(newNFS(r.Mounts, access.NFS{Server: c.server, Share: "/srv", SubDir: "a"}, c.readOnly))(t)
		if got, err := n.shown(t.Context(), c.e, nil); err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", what, got, err, c.want)
		}
	}
	r.lookup = at()
	n, err := newNFS(r.Mounts, access.NFS{Server: "other.example", Share: "/srv", SubDir: "a"}, false)
	testkit.Must(t, err)
	_, err = n.shown(t.Context(), entry("nfs4", "nfs.example:/srv/a"), nil)
	testkit.WantError(t, "the error", err, errs.Unavailable, "look up the NFS server", "no such host")
}

func TestStatdAnswer(t *testing.T) {
	words := func(all ...byte) (b []byte) {
		for _, w := range all {
			b = append(b, 0, 0, 0, w)
		}
		return b
	}
	for what, c := range map[string]struct {
		answer []byte
		want   bool
	}{
		"a port":         {words(1, 1, 0, 0, 0, 0, 99), true},
		"not registered": {words(1, 1, 0, 0, 0, 0, 0), false},
		"another call":   {words(2, 1, 0, 0, 0, 0, 99), false},
		"denied":         {words(1, 1, 1, 0, 0, 0, 99), false},
		"no program":     {words(1, 1, 0, 0, 0, 1, 99), false},
		"truncated":      {words(1, 1, 0, 0, 0, 0), false},
		"nothing":        {nil, false},
	} {
		if got := hasPort(c.answer, 1); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	if q := statdRequest(7); len(q) != 56 || q[3] != 7 || !slices.Equal(q[12:16], []byte{0, 1, 0x86, 0xa0}) || !slices.Equal(q[40:44], []byte{0, 1, 0x86, 0xb8}) {
		t.Errorf("question % x", q)
	}
}
