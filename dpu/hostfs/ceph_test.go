package hostfs

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

func words(all []monitor) string {
	var w []string
	for _, m := range all {
		kind := "v1:"
		if m.v2 {
			kind = "v2:"
		}
		w = append(w, kind+m.addr.String())
	}
	return strings.Join(w, " ")
}

func TestMonHost(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1":           "v2:192.0.2.1:3300 v1:192.0.2.1:6789",
		"192.0.2.1:6789":      "v1:192.0.2.1:6789",
		"192.0.2.1:3300":      "v2:192.0.2.1:3300",
		"192.0.2.1:7000":      "v1:192.0.2.1:7000",
		"v2:192.0.2.1:7000/0": "v2:192.0.2.1:7000",
		"v1:192.0.2.1":        "v1:192.0.2.1:6789",
		"v2:192.0.2.1":        "v2:192.0.2.1:3300",
		"[v2:192.0.2.1:3300/0,v1:192.0.2.1:6789/0]":                                           "v2:192.0.2.1:3300 v1:192.0.2.1:6789",
		"[v2:192.0.2.1:3300/0,v1:192.0.2.1:6789/0],[v2:192.0.2.2:3300/0,v1:192.0.2.2:6789/0]": "v2:192.0.2.1:3300 v1:192.0.2.1:6789 v2:192.0.2.2:3300 v1:192.0.2.2:6789",
		"[v2:192.0.2.1:3300,v1:192.0.2.1:6789] [v2:192.0.2.2:3300]":                           "v2:192.0.2.1:3300 v1:192.0.2.1:6789 v2:192.0.2.2:3300",
		"192.0.2.1, 192.0.2.2:6789; 192.0.2.1:6789":                                           "v2:192.0.2.1:3300 v1:192.0.2.1:6789 v1:192.0.2.2:6789",
		"[2001:db8::1]:6789": "v1:[2001:db8::1]:6789",
		"[2001:db8::1]":      "v2:[2001:db8::1]:3300 v1:[2001:db8::1]:6789",
		"[v2:[2001:db8::1]:3300/0,v1:[2001:db8::1]:6789/0]": "v2:[2001:db8::1]:3300 v1:[2001:db8::1]:6789",
		"[v2:[2001:db8::1]:3300,v1:[2001:db8::1]]":          "v2:[2001:db8::1]:3300 v1:[2001:db8::1]:6789",
		"::ffff:192.0.2.1": "v2:192.0.2.1:3300 v1:192.0.2.1:6789",
	} {
		got, err := parseMonHost(in)
		if err != nil || words(got) != want {
			t.Errorf("%s\n got %s, %v\nwant %s", in, words(got), err, want)
		}
	}
	for _, in := range []string{"", " , ", "mon.example.com", "mon:6789", "192.0.2.1:0x10", "192.0.2.1:99999", "192.0.2.1/x", "v3:192.0.2.1:1", "0.0.0.0", "224.0.0.1", "fe80::1%eth0", "192.0.2.1]"} {
		if got, err := parseMonHost(in); err == nil {
			t.Errorf("%q: %s, want an error", in, words(got))
		}
	}
}

func TestConf(t *testing.T) {
	for what, c := range map[string]struct{ in, want, says string }{
		"plain":             {"[global]\nmon_host = 192.0.2.1:6789\n", "v1:192.0.2.1:6789", ""},
		"blank in the key":  {"[global]\n\tmon host=192.0.2.1:6789", "v1:192.0.2.1:6789", ""},
		"dash and capitals": {"[global]\nMon-Host = 192.0.2.1:6789", "v1:192.0.2.1:6789", ""},
		"comments":          {"# a\n; b\n[global] ; c\nmon_host = 192.0.2.1:6789 # d\n", "v1:192.0.2.1:6789", ""},
		"quotes":            {"[global]\nmon_host = \"192.0.2.1:6789\"", "v1:192.0.2.1:6789", ""},
		"continued":         {"[global]\nmon_host = 192.0.2.1:6789,\\\n 192.0.2.2:6789\n", "v1:192.0.2.1:6789 v1:192.0.2.2:6789", ""},
		"line ends of DOS":  {"[global]\r\nmon_host = 192.0.2.1:6789\r\n", "v1:192.0.2.1:6789", ""},
		"the last counts":   {"[global]\nmon_host=192.0.2.1:6789\nmon_host=192.0.2.2:6789", "v1:192.0.2.2:6789", ""},
		"others around":     {"[mon]\nmon_host=192.0.2.9:6789\n[global]\nfsid = x\nmon_host=192.0.2.1:6789\nmon_initial_members=a\n[client]\nmon_host=192.0.2.8:6789", "v1:192.0.2.1:6789", ""},
		"section again":     {"[global]\nfsid=x\n[mon]\na=b\n[global]\nmon_host=192.0.2.1:6789", "v1:192.0.2.1:6789", ""},
		"empty":             {"", "", "no mon_host in section [global]"},
		"elsewhere only":    {"[client]\nmon_host=192.0.2.1", "", "no mon_host in section [global]"},
		"before a section":  {"mon_host=192.0.2.1", "", "no mon_host in section [global]"},
		"a name":            {"[global]\nmon_host=mon-a.example", "", "mon-a.example"},
		"no value":          {"[global]\nmon_host=", "", "no monitors"},
	} {
		got, err := parseConf(c.in)
		if words(got) != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %s, %v; want %s, %s", what, words(got), err, c.want, c.says)
		}
	}
}

// FuzzConf: the result can be passed to the kernel, and parsed again.
func FuzzConf(f *testing.F) {
	f.Add("[global]\nmon_host = [v2:192.0.2.1:3300/0,v1:192.0.2.1:6789/0]\n")
	f.Add("[global]\nmon host = [2001:db8::1]:6789, 192.0.2.1 # x\\\n")
	f.Add("[[global]]\nmon_host==[]")
	f.Fuzz(func(t *testing.T, in string) {
		all, err := parseConf(in)
		if err != nil {
			return
		}
		if len(all) == 0 {
			t.Fatal("no monitor and no error")
		}
		for _, m := range all {
			if !m.addr.IsValid() || m.addr.Port() == 0 || m.addr.Addr().Zone() != "" {
				t.Errorf("%q gives %v", in, m)
			}
		}
		again, err := parseMonHost(words(all))
		if diff := cmp.Diff(words(all), words(again)); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", in, err, diff)
		}
	})
}

func key(fill byte) (text string, secret []byte) {
	secret = append([]byte{1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 0}, bytes.Repeat([]byte{fill}, 16)...)
	return base64.StdEncoding.EncodeToString(secret), secret
}

func TestParseKey(t *testing.T) {
	one, secret1 := key(1)
	two, secret2 := key(2)
	ring := "[client.a]\n\tkey = " + one + "\n\tcaps mon = \"allow r\"\n[client.b]\nkey=" + two + "\n[osd.0]\nkey = x\n"
	for what, c := range map[string]struct {
		text, user, wantUser string
		want                 []byte
		says                 string
	}{
		"alone":               {one, "a", "a", secret1, ""},
		"with a line end":     {one + "\n", "", "", secret1, ""},
		"key = alone":         {"key = " + one + "\n", "a", "a", secret1, ""},
		"keyring":             {ring, "b", "b", secret2, ""},
		"keyring of one":      {"[client.a]\nkey = " + one, "", "a", secret1, ""},
		"keyring of two":      {ring, "", "", nil, "has 2 users"},
		"no such user":        {ring, "c", "", nil, "no key for client.c"},
		"another daemon's":    {ring, "osd.0", "", nil, "no key for client.osd.0"},
		"empty":               {"", "a", "", nil, "not a Ceph key"},
		"no base64":           {"***", "a", "", nil, "not a Ceph key"},
		"truncated":           {one[:20], "a", "", nil, "not a Ceph key"},
		"of another form":     {"c2VjcmV0c2VjcmV0c2VjcmV0", "a", "", nil, "not a Ceph key"},
		"bad one in keyring":  {"[client.a]\nkey = c2VjcmV0", "a", "", nil, "not a Ceph key"},
		"keyring without one": {"[client.a]\ncaps = x", "a", "", nil, "no key for client.a"},
	} {
		got, err := parseKey(c.text, c.user)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) || c.text != "" && strings.Contains(err.Error(), strings.TrimSpace(c.text)) {
				t.Errorf("%s: %v, want an error that says %q", what, err, c.says)
			}
			continue
		}
		if err != nil || got.user != c.wantUser || !bytes.Equal(got.secret, c.want) {
			t.Errorf("%s: %s, %v", what, got.user, err)
		}
	}
}

func TestReadKey(t *testing.T) {
	text, _ := key(1)
	dir := filepath.Join(t.TempDir(), "keys")
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "..data"), 0o755))
	write := func(file string, mode os.FileMode) {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
		testkit.Must(t, os.Chmod(filepath.Join(dir, file), mode))
	}
	write("good", 0o600)
	write("tight", 0o400)
	write("..data/linked", 0o400)
	write("open", 0o644)
	write("group", 0o640)
	write("foreign", 0o600)
	write("../outside", 0o600)
	testkit.Must(t, os.Chown(filepath.Join(dir, "foreign"), 4711, 0))
	testkit.Must(t, os.Symlink("..data/linked", filepath.Join(dir, "linked")))
	testkit.Must(t, os.Symlink("../outside", filepath.Join(dir, "out")))
	testkit.Must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "huge"), make([]byte, maxConf+1), 0o600))
	for name, says := range map[string]string{
		"good": "", "tight": "", "linked": "", "open": "mode 0644", "group": "mode 0640", "foreign": "user 4711", "out": "escapes", "../outside": "escapes",
		"pipe": "is not a regular file", "..data": "is not a regular file", "gone": "no such file", "huge": "longer than",
	} {
		k, err := readKey(dir, name, "a")
		if says == "" {
			if err != nil || len(k.secret) == 0 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		testkit.WantError(t, "the error", err, errs.Precondition, "Ceph key", says)
	}
	_, err := readKey(dir+"-none", "good", "a")
	testkit.WantError(t, "the error", err, errs.Precondition, "key directory")
}

func TestCephOrder(t *testing.T) {
	conf, keys := t.TempDir(), t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(keys, "new"), nil, 0o600), os.Symlink("/", filepath.Join(keys, "unreadable")))
	testkit.Must(t, os.WriteFile(filepath.Join(conf, "east.conf"), []byte("[global]\nmon_host = [v2:192.0.2.1:3300/0,v1:192.0.2.1:6789/0]\n"), 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(conf, "new.conf"), []byte("[global]\nmon_host = [v2:192.0.2.1:3300/0] [v2:192.0.2.2:3300/0]\n"), 0o600))
	r := newRig(t, func(c *Config) { c.CephDir, c.KeyDir = conf, keys })
	mons := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.7:0"), netip.MustParseAddrPort("[2001:db8::7]:6790")}
	for what, c := range map[string]struct {
		at      access.CephFS
		want    cephMount
		options string
	}{
		"by its cluster": {access.CephFS{Ceph: access.Ceph{ClusterID: "east", User: "u", Key: "k"}, FS: "fs", Path: "/a/b"},
			cephMount{Source: "192.0.2.1:6789:/a/b", FS: "fs", User: "u", KeyDir: keys, Key: "k"}, "nosuid nodev name=u key=d mds_namespace=fs"},
		"newer protocol only": {access.CephFS{Ceph: access.Ceph{ClusterID: "new", User: "u"}, Path: "/"}, // with the cluster's key
			cephMount{Source: "192.0.2.1:3300,192.0.2.2:3300:/", User: "u", Mode: "prefer-crc", KeyDir: keys, Key: "new"}, "nosuid nodev name=u key=d ms_mode=prefer-crc"},
		"by its monitors": {access.CephFS{Ceph: access.Ceph{ClusterID: "gone", Monitors: mons}, Path: "/a"},
			cephMount{Source: "192.0.2.7:6789,[2001:db8::7]:6790:/a"}, "nosuid nodev name=admin"},
		"the cluster's key cannot be read": {access.CephFS{Ceph: access.Ceph{ClusterID: "unreadable", Monitors: mons}, Path: "/a"}, // the mount says why
			cephMount{Source: "192.0.2.7:6789,[2001:db8::7]:6790:/a", KeyDir: keys, Key: "unreadable"}, "nosuid nodev name=admin key=d"},
	} {
		s := testkit.Value(newCephFS(r.Mounts, c.at, false))(t)
		got, err := s.mountRequest()
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", what, err, diff)
		}
		description := ""
		if got.Key != "" {
			description = "d"
		}
		if o := strings.Join(got.options(description), " "); o != c.options {
			t.Errorf("%s: options %s, want %s", what, o, c.options)
		}
	}
	spec := func(c access.CephFS) plan.MountSpec { return plan.MountSpec{CephFS: &c} }
	err := r.Mount(t.Context(), name, spec(access.CephFS{Ceph: access.Ceph{ClusterID: "west"}, Path: "/"}))
	testkit.WantError(t, "the error", err, errs.Precondition, "cluster west", "no such file")
	err = r.Mount(t.Context(), name, spec(access.CephFS{Ceph: access.Ceph{ClusterID: "../east"}, Path: "/"}))
	testkit.WantError(t, "the error", err, errs.Precondition, "escapes")
	err = r.Mount(t.Context(), name, spec(access.CephFS{Ceph: access.Ceph{Monitors: mons}, Path: "/" + strings.Repeat("x", 250)}))
	testkit.WantError(t, "the error", err, errs.Invalid, "at most 255 are allowed")
	bare := newRig(t)
	err = bare.Mount(t.Context(), name, spec(access.CephFS{Ceph: access.Ceph{ClusterID: "east"}, Path: "/"}))
	testkit.WantError(t, "the error", err, errs.Precondition, "no configuration directory is set")
	err = bare.Mount(t.Context(), name, spec(access.CephFS{Ceph: access.Ceph{Monitors: mons, Key: "k"}, Path: "/"}))
	testkit.WantError(t, "the error", err, errs.Precondition, "no key directory")
	if left, err := os.ReadDir(bare.config.Dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestCephShown(t *testing.T) {
	r := newRig(t)
	at := access.CephFS{Ceph: access.Ceph{Monitors: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6789"), netip.MustParseAddrPort("[2001:db8::1]:0")}, User: "u"}, FS: "fs", Path: "/a"}
	entry := func(fsType, source string, super ...string) mount.Entry {
		return mount.Entry{FSType: fsType, Source: source, Options: []string{"rw"}, SuperOptions: super}
	}
	for what, c := range map[string]struct {
		e        mount.Entry
		readOnly bool
		want     bool
	}{
		"the same":            {entry("ceph", "192.0.2.1:6789:/a", "rw", "name=u", "secret=<hidden>", "mds_namespace=fs"), false, true},
		"a monitor was added": {entry("ceph", "192.0.2.9:6789,[2001:db8::1]:6789:/a", "name=u", "fs=fs"), false, true},
		"another cluster":     {entry("ceph", "192.0.2.9:6789:/a", "name=u", "fs=fs"), false, false},
		"another port":        {entry("ceph", "192.0.2.1:6790:/a", "name=u", "fs=fs"), false, false},
		"another directory":   {entry("ceph", "192.0.2.1:6789:/a/b", "name=u", "fs=fs"), false, false},
		"another user":        {entry("ceph", "192.0.2.1:6789:/a", "name=v", "fs=fs"), false, false},
		"another file system": {entry("ceph", "192.0.2.1:6789:/a", "name=u", "fs=other"), false, false},
		"FUSE":                {entry("fuse.ceph-fuse", "192.0.2.1:6789:/a", "name=u", "fs=fs"), false, false},
		"writable":            {entry("ceph", "192.0.2.1:6789:/a", "name=u", "fs=fs"), true, false},
		"read-only":           {entry("ceph", "192.0.2.1:6789:/a", "ro", "name=u", "fs=fs"), true, true},
	} {
		s := testkit.Value(newCephFS(r.Mounts, at, c.readOnly))(t)
		if got, err := s.shown(t.Context(), c.e, nil); err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", what, got, err, c.want)
		}
	}
}

func TestCephExplains(t *testing.T) {
	r := newRig(t)
	s := testkit.Value(newCephFS(r.Mounts, access.CephFS{Ceph: access.Ceph{Monitors: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:0")}}, Path: "/a"}, false))(t)
	for errno, kind := range map[error]errs.Kind{
		unix.EIO: errs.Unavailable, unix.ETIMEDOUT: errs.Unavailable, unix.EHOSTUNREACH: errs.Unavailable, errNoAnswer: errs.Unavailable,
		unix.ENOENT: errs.Precondition, unix.EACCES: errs.Precondition, unix.ENOKEY: errs.Precondition, unix.EPERM: errs.Precondition,
		unix.ENOPKG: errs.Precondition,
	} {
		testkit.WantError(t, "explain", s.explain(errno), kind, "directory /a of CephFS", errno.Error())
	}
	if s.explain(nil) != nil || !errors.Is(s.explain(errs.Unsupported), errs.Unsupported) {
		t.Error("an error became another")
	}
}
