package access_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

const pool = "0198a6b2-7c1e-7b5e-9d0a-0123456789ab"

func file() map[string]string {
	return map[string]string{"targetType": "file", "pool": pool, "file": "volumes/vol-1"}
}

func TestEncode(t *testing.T) {
	a := access.File{Pool: pool, Name: "volumes/vol-1"}
	testkit.Diff(t, "Encode", file(), access.Encode(a))
	if a.Protocol() != "file" {
		t.Errorf("Protocol() = %q", a.Protocol())
	}
}

func TestRoundTrip(t *testing.T) {
	hex := func(n int) *rapid.Generator[string] {
		return rapid.StringMatching(`[0-9a-f]{` + string(rune('0'+n)) + `}`)
	}
	rapid.Check(t, func(t *rapid.T) {
		a := access.File{
			Pool: hex(8).Draw(t, "1") + "-" + hex(4).Draw(t, "2") + "-" + hex(4).Draw(t, "3") + "-" + hex(4).Draw(t, "4") + "-" + hex(8).Draw(t, "5") + hex(4).Draw(t, "6"),
			Name: rapid.StringMatching(`[a-z]{1,10}(/[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,30}){0,3}`).Draw(t, "name"),
		}
		foreign := rapid.MapOf(rapid.StringMatching(`[a-z.]+/[a-z]+`), rapid.String()).Draw(t, "foreign keys")
		if got, err := access.Decode(foreign, access.Encode(a)); err != nil || got != access.Access(a) {
			t.Fatalf("Decode(Encode(%+v)) = %+v, %v", a, got, err)
		}
	})
}

func TestDecodeLaterContextsWin(t *testing.T) {
	want := access.File{Pool: pool, Name: "volumes/other"}
	got, err := access.Decode(file(), nil, map[string]string{"file": "volumes/other"})
	if err != nil || got != access.Access(want) {
		t.Errorf("Decode = %+v, %v; want %+v", got, err, want)
	}
	first := file()
	if _, err := access.Decode(first, map[string]string{"file": "volumes/other"}); err != nil || first["file"] != "volumes/vol-1" {
		t.Errorf("Decode changed its argument to %v (%v)", first, err)
	}
}

func TestDecodeNone(t *testing.T) {
	for name, contexts := range map[string][]map[string]string{
		"no contexts": nil, "nil": {nil}, "empty": {{}, {}}, "foreign keys": {{"csi.example.com/x": "y"}},
		"the other keys alone": {{"pool": pool, "file": "volumes/vol-1"}},
	} {
		if _, err := access.Decode(contexts...); !errors.Is(err, access.ErrNone) {
			t.Errorf("%s: %v, want ErrNone", name, err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, overlay := range map[string]map[string]string{
		"unknown protocol":     {"targetType": "floppy"},
		"protocol in capitals": {"targetType": "FILE"},
		"no pool":              {"pool": ""},
		"pool in capitals":     {"pool": strings.ToUpper(pool)},
		"pool is a path":       {"pool": "../" + pool},
		"pool and more":        {"pool": pool + "\n"},
		"no file":              {"file": ""},
		"absolute":             {"file": "/etc/passwd"},
		"parent":               {"file": ".."},
		"climbs":               {"file": "../engine.db"},
		"climbs later":         {"file": "volumes/../../x"},
		"climbs inside":        {"file": "volumes/../engine.db"},
		"dot":                  {"file": "."},
		"leading dot":          {"file": "./volumes/x"},
		"double slash":         {"file": "volumes//x"},
		"trailing slash":       {"file": "volumes/x/"},
		"NUL":                  {"file": "volumes/x\x00y"},
		"too long":             {"file": strings.Repeat("x", 256)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := access.Decode(file(), overlay)
			if err == nil {
				t.Fatalf("Decode = %+v, want an error", got)
			}
			if errors.Is(err, access.ErrNone) {
				t.Errorf("%v, though there is a locator", err)
			}
		})
	}
}

// Accepted names stay below the pool, and are written as read.
func FuzzDecode(f *testing.F) {
	f.Add("file", pool, "volumes/vol-1")
	f.Add("file", pool, "../x")
	f.Add("", "", "")
	f.Add("FILE", "x", "y")
	f.Fuzz(func(t *testing.T, kind, pool, name string) {
		a, err := access.Decode(map[string]string{"targetType": kind, "pool": pool, "file": name})
		if err != nil {
			if err.Error() == "" {
				t.Error("the error says nothing")
			}
			return
		}
		got, ok := a.(access.File)
		if !ok {
			t.Fatalf("Decode made %T", a)
		}
		if !filepath.IsLocal(got.Name) || filepath.Clean(got.Name) != got.Name || strings.ContainsRune(got.Name, 0) {
			t.Errorf("name %q could leave the pool", got.Name)
		}
		again, err := access.Decode(access.Encode(a))
		if err != nil || again != a {
			t.Errorf("%+v comes back as %+v, %v", a, again, err)
		}
	})
}

func TestMisspelt(t *testing.T) {
	for _, c := range []struct {
		context kv
		want    []string
	}{
		{kv{"targetType": "tcp", "nqm": "a"}, []string{`"nqm" (nqn?)`}},
		{kv{"nqm": "a"}, []string{`"nqm" (nqn?)`}},
		{kv{"nqn": "a", "dhchap": "a", "dhchap_ctrl_key": "b"}, []string{`"dhchap" (dhchapKey?)`, `"dhchap_ctrl_key" (dhchapCtrlrKey?)`}},
		{kv{"nqn": "a", "model": "a", "lvolSize": "1", "lvstore": "s", "csi.storage.k8s.io/pvc": "a", "subnqn": "a", "PSK": "a"}, nil},
		{kv{"targetType": "file", "nqm": "a"}, nil},
		{kv{"server": "a", "share": "/", "nqm": "a"}, nil},
	} {
		if got := access.Misspelt(c.context); !slices.Equal(got, c.want) {
			t.Errorf("Misspelt(%v) = %q, want %q", c.context, got, c.want)
		}
	}
}

var (
	names = rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,20}[A-Za-z0-9]`)
	addrs = rapid.Custom(func(t *rapid.T) netip.Addr {
		tail := rapid.SliceOfN(rapid.Byte(), 3, 3).Draw(t, "tail")
		if rapid.Bool().Draw(t, "IPv6") {
			return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 13: tail[0], 14: tail[1], 15: tail[2]})
		}
		return netip.AddrFrom4([4]byte{10, tail[0], tail[1], tail[2]})
	})
)

func optional(t *rapid.T, g *rapid.Generator[string], label string) string {
	if rapid.Bool().Draw(t, "with "+label) {
		return g.Draw(t, label)
	}
	return ""
}

func drawPaths(t *rapid.T, least, lowest int) []netip.AddrPort {
	return rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) netip.AddrPort {
		return netip.AddrPortFrom(addrs.Draw(t, "address"), uint16(rapid.IntRange(lowest, 65535).Draw(t, "port")))
	}), least, 4, rapid.ID).Draw(t, "paths")
}

// drawTimeouts draws valid values, the longest first.
func drawTimeouts(t *rapid.T) access.Timeouts {
	var out access.Timeouts
	loss := rapid.IntRange(1, 1000).Draw(t, "loss")
	fast := rapid.IntRange(1, loss).Draw(t, "fast")
	delay := rapid.IntRange(1, fast).Draw(t, "delay")
	for label, c := range map[string]struct {
		to *access.Seconds
		n  int
	}{"1": {&out.Loss, rapid.SampledFrom([]int{loss, -1}).Draw(t, "loss or never")}, "2": {&out.FastFail, fast}, "3": {&out.Delay, delay}} {
		if rapid.Bool().Draw(t, label) {
			*c.to = access.Sec(c.n)
		}
	}
	return out
}

func drawNVMe(t *rapid.T) access.Access {
	n := access.NVMe{
		Transport: rapid.SampledFrom([]string{"tcp", "rdma"}).Draw(t, "transport"), Paths: drawPaths(t, 1, 1),
		NQN:  rapid.StringMatching(`nqn\.20[0-9]{2}-[0-9]{2}\.[!-~]{1,80}`).Draw(t, "nqn"),
		UUID: optional(t, rapid.StringMatching(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "uuid"), NGUID: optional(t, rapid.StringMatching(`[0-9a-f]{32}`), "nguid"),
		NSID:    uint32(rapid.IntRange(0, 1024).Draw(t, "nsid")),
		HostNQN: optional(t, rapid.StringMatching(`nqn\.20[0-9]{2}-[0-9]{2}\.[!-~]{1,80}`), "host"), Timeouts: drawTimeouts(t),
		IOQueues:         rapid.IntRange(0, 65535).Draw(t, "queues"),
		AcceptUUIDChange: rapid.Bool().Draw(t, "accept"), AcceptFlushLoss: rapid.Bool().Draw(t, "accept flush loss"),
		HeaderDigest: rapid.Bool().Draw(t, "hdgst"), DataDigest: rapid.Bool().Draw(t, "ddgst"),
	}
	if n.DHChapKey = optional(t, names, "dhchap"); n.DHChapKey != "" {
		n.DHChapCtrlrKey = optional(t, names, "dhchap of the target")
	}
	if n.Transport == "tcp" {
		n.TLSKey = optional(t, names, "tls")
	}
	return n
}

func drawCeph(t *rapid.T) access.Ceph {
	c := access.Ceph{Monitors: drawPaths(t, 0, 0), User: optional(t, rapid.StringMatching(`[a-z][a-z0-9.-]{0,9}`), "user"), Key: optional(t, names, "key")}
	if len(c.Monitors) == 0 || rapid.Bool().Draw(t, "cluster too") {
		c.ClusterID = names.Draw(t, "cluster")
	}
	return c
}

func drawAccess(t *rapid.T) access.Access {
	return rapid.OneOf(
		rapid.Custom(drawNVMe),
		rapid.Custom(func(t *rapid.T) access.Access {
			return access.RBD{Ceph: drawCeph(t), Pool: names.Draw(t, "pool"), Namespace: optional(t, names, "namespace"), Image: names.Draw(t, "image"), ImageID: optional(t, names, "image id")}
		}),
		rapid.Custom(func(t *rapid.T) access.Access {
			return access.CephFS{Ceph: drawCeph(t), FS: optional(t, names, "fs"), Path: "/" + names.Draw(t, "path")}
		}),
		rapid.Custom(func(t *rapid.T) access.Access {
			n := access.NFS{Share: "/" + optional(t, rapid.StringMatching(`[a-z]{1,5}(/[a-z ]{1,5}){0,2}`), "share"), SubDir: optional(t, names, "subdir")}
			n.Server = rapid.OneOf(rapid.Map(addrs, netip.Addr.String), rapid.StringMatching(`[a-z]{1,9}(\.[a-z]{1,9}){0,2}`)).Draw(t, "server")
			n.Options = rapid.SliceOfN(rapid.StringMatching(`[a-z]{2}=[0-9]{1,4}|ro|hard`), 0, 4).Draw(t, "options")
			return n
		}),
	).Draw(t, "access")
}

// Also with foreign keys, and within the limits of a CSI map.
func TestEveryKindRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawAccess(t)
		foreign := rapid.MapOf(rapid.StringMatching(`[a-z.]+/[a-z]+`), rapid.String()).Draw(t, "foreign keys")
		got := testkit.Value(access.Decode(foreign, access.Encode(a)))(t)
		if diff := cmp.Diff(a, got, equalAddrs); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		if !access.Equal(a, got) {
			t.Fatalf("%+v and %+v are not Equal", a, got)
		}
	})
}

// Given values are kept, and Check succeeds.
func TestOr(t *testing.T) {
	open := access.Timeouts{}
	defaults := access.Timeouts{Loss: access.Sec(-1), Delay: access.Sec(2), FastFail: access.Sec(10)}
	for _, c := range []struct{ given, defaults, want access.Timeouts }{
		{open, defaults, defaults},
		{open, open, access.Timeouts{Loss: access.Sec(0), Delay: access.Sec(0), FastFail: access.Sec(0)}},
		{access.Timeouts{Delay: access.Sec(0)}, defaults, access.Timeouts{Loss: access.Sec(0), Delay: access.Sec(0), FastFail: access.Sec(0)}},
		{access.Timeouts{Loss: access.Sec(5)}, defaults, access.Timeouts{Loss: access.Sec(5), Delay: access.Sec(2), FastFail: access.Sec(5)}},
		{access.Timeouts{FastFail: access.Sec(1)}, defaults, access.Timeouts{Loss: access.Sec(-1), Delay: access.Sec(1), FastFail: access.Sec(1)}},
	} {
		if got := c.given.Or(c.defaults); got != c.want {
			t.Errorf("%+v.Or(%+v) = %+v, want %+v", c.given, c.defaults, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		given := drawTimeouts(t)
		full := given.Or(drawTimeouts(t))
		l, d, f := full.Loss, full.Delay, full.FastFail
		switch {
		case !l.Given || !d.Given || !f.Given:
			t.Fatalf("%+v is left open", full)
		case given.Loss.Given && l != given.Loss, given.Delay.Given && d != given.Delay, given.FastFail.Given && f != given.FastFail:
			t.Fatalf("%+v was given, became %+v", given, full)
		case l.N == 0 && (d.N != 0 || f.N != 0), l.N != 0 && d.N < 1, l.N > 0 && (d.N > l.N || f.N > l.N), f.N != 0 && f.N < d.N:
			t.Fatalf("%+v breaks the rules", full)
		}
	})
}

// Accepted contexts are written as read.
func FuzzContexts(f *testing.F) {
	for _, c := range []kv{
		{"targetType": "tcp", "targetAddr": "192.0.2.1,[2001:db8::1]:9", "nqn": nqn, "ctrlLossTmo": "-1", "nsId": "1"},
		{"connections": `[{"ip":"192.0.2.1","port":"4420"}]`, "nqn": nqn, "psk": "k"},
		{"server": "s", "share": "/x", "subdir": "a", "mountoptions": "ro,hard"},
		{"clusterID": "c", "pool": "p", "imageName": "i", "monitors": "192.0.2.1"},
		{"clusterID": "c", "fsName": "f", "rootPath": "/x"},
	} {
		text := testkit.Value(json.Marshal(c))(f)
		f.Add(string(text), `{"targetAddr":"192.0.2.7"}`)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		var a, b kv
		if json.Unmarshal([]byte(first), &a) != nil || json.Unmarshal([]byte(second), &b) != nil {
			return
		}
		got, err := access.Decode(a, b)
		if err != nil {
			return
		}
		again, err := access.Decode(access.Encode(got))
		if err != nil || !access.Equal(again, got) || again.Protocol() != got.Protocol() {
			t.Errorf("%+v comes back as %+v, %v", got, again, err)
		}
	})
}
