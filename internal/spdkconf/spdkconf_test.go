package spdkconf

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

func addresses(all ...string) (list []netip.AddrPort) {
	for _, s := range all {
		list = append(list, netip.MustParseAddrPort(s))
	}
	return list
}

func compareTargets(t *testing.T, want, got []Target) {
	t.Helper()
	testkit.Diff(t, "targets", want, got, cmpopts.IgnoreFields(Target{}, "Password"), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }))
}

func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// The files as spdk-csi publishes them, unchanged.
func TestReadFilesOfSPDKCSI(t *testing.T) {
	got := testkit.Value(Read("testdata/config.json", "testdata/secret.json"))(t)
	compareTargets(t, []Target{{Name: "localhost", URL: "http://127.0.0.1:9009", User: "spdkcsiuser", Transport: "tcp", Addresses: addresses("127.0.0.1:4420")}}, got)
	if p, err := got[0].Password.Read(); err != nil || p != "spdkcsipass" {
		t.Errorf("password %q, %v", p, err)
	}
}

func TestReadYAML(t *testing.T) {
	secret := write(t, "secret.yaml", "rpcTokens:\n- {name: other, username: x, password: z}\n- {name: storage-2, username: u, password: 'p'}\n")
	got := testkit.Value(Read("testdata/targets.yaml", secret))(t)
	compareTargets(t, []Target{
		{
			Name: "storage-1", Socket: "/var/tmp/spdk.sock", Transport: "tcp", Stores: []string{"lvs0"},
			Addresses: addresses("192.0.2.1:4420", "[2001:db8::1]:4421", "192.0.2.2:4420"), Topology: map[string]string{"topology.kubernetes.io/zone": "a"},
		},
		{Name: "storage-2", URL: "https://storage-2.example.com:9009", User: "u", Transport: "rdma", Addresses: addresses("[2001:db8::2]:4420")},
	}, got)
}

func TestTLSAddresses(t *testing.T) {
	entry := func(kind, more string) string {
		return `{"targets":[{"name":"a","rpcURL":"unix:///s","targetType":"nvme-` + kind + `","targetAddr":"192.0.2.1","tlsAddresses":["192.0.2.1:4421"` + more + `]}]}`
	}
	got := testkit.Value(Parse([]byte(entry("tcp", ""))))(t)
	compareTargets(t, []Target{{Name: "a", Socket: "/s", Transport: "tcp", Addresses: addresses("192.0.2.1:4420"), TLSAddresses: addresses("192.0.2.1:4421")}}, got)
	for text, want := range map[string]string{
		entry("rdma", ""):               "only nvme-tcp has TLS",
		entry("tcp", `,"192.0.2.1"`):    "tlsAddresses[1]: 192.0.2.1:4420 is given twice",
		entry("tcp", `,"192.0.2.1:no"`): "tlsAddresses[1]",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestForget(t *testing.T) {
	const lost = "0c5b9f0e-8b7a-4d52-9d1e-3a1f2b3c4d5e"
	got := testkit.Value(Parse([]byte(`{"targets":[{"name":"a","rpcURL":"unix:///s","targetType":"nvme-tcp","targetAddr":"192.0.2.1","forget":["` + lost + `"]}]}`)))(t)
	compareTargets(t, []Target{{Name: "a", Socket: "/s", Transport: "tcp", Addresses: addresses("192.0.2.1:4420"), Forget: []string{lost}}}, got)
}

func TestCleared(t *testing.T) {
	entry := func(tokens string) []byte {
		return []byte(`{"targets":[{"name":"a","rpcURL":"unix:///s","targetType":"nvme-tcp","targetAddr":"192.0.2.1","cleared":[` + tokens + `]}]}`)
	}
	got := testkit.Value(Parse(entry(`"unclean-abcd2345"`)))(t)
	compareTargets(t, []Target{{Name: "a", Socket: "/s", Transport: "tcp", Addresses: addresses("192.0.2.1:4420"), Cleared: []string{"unclean-abcd2345"}}}, got)
	for _, wrong := range []string{`"lvs0"`, `"unclean-abcd2345","unclean-abcd2345"`} {
		if _, err := Parse(entry(wrong)); err == nil || !strings.Contains(err.Error(), "cleared[") {
			t.Errorf("cleared %s: %v", wrong, err)
		}
	}
}

func TestKeysInAnyCase(t *testing.T) {
	got := testkit.Value(Parse([]byte(`{"Nodes":[{"NAME":"a","rpcUrl":"unix:///s","TargetType":"NVMe-TCP","targetaddr":"[::ffff:192.0.2.1]"}]}`)))(t)
	compareTargets(t, []Target{{Name: "a", Socket: "/s", Transport: "tcp", Addresses: addresses("192.0.2.1:4420")}}, got)
}

func TestParseRefuses(t *testing.T) {
	// with replaces or adds keys of a valid target; "" removes one.
	with := func(pairs ...string) string {
		keys := map[string]string{"name": `"a"`, "rpcURL": `"unix:///s"`, "targetType": `"nvme-tcp"`, "targetAddr": `"192.0.2.1"`}
		for i := 0; i < len(pairs); i += 2 {
			keys[pairs[i]] = pairs[i+1]
		}
		var all []string
		for k, v := range keys {
			if v != "" {
				all = append(all, fmt.Sprintf("%q: %s", k, v))
			}
		}
		return "{" + strings.Join(all, ", ") + "}"
	}
	in := func(entries ...string) string { return `{"targets": [` + strings.Join(entries, ", ") + `]}` }
	for name, c := range map[string]struct {
		text  string
		words []string
	}{
		"empty":             {" \n", []string{"empty"}},
		"a list":            {"[]", []string{"a list", "config.json"}},
		"broken JSON":       {"{\n \"targets\": [}", []string{"line 2", "not JSON"}},
		"broken YAML":       {"a: b: c", []string{"neither YAML nor JSON"}},
		"two documents":     {"targets: []\n---\ntargets: []", []string{"second"}},
		"no targets":        {`{"targets": []}`, []string{"no targets", "rpcURL"}},
		"both lists":        {`{"nodes": [` + with() + `], "targets": [` + with("name", `"b"`) + `]}`, []string{"both nodes and targets"}},
		"simplyblock":       {`{"simplybk": {"ip": "x"}}`, []string{`no key "simplybk"`, "nodes, targets"}},
		"misspelt key":      {in(with("targetAdr", `"192.0.2.1"`)), []string{`no key "targetAdr"`, `mean "targetAddr"`, "line 1"}},
		"key twice":         {`{"targets": [` + with() + `], "Targets": []}`, []string{"twice"}},
		"wrong type":        {in(with("name", "7")), []string{"targets[0].name", "number"}},
		"no name":           {in(with("name", "")), []string{"targets[0].name", `""`}},
		"name with colon":   {in(with("name", `"a:b"`)), []string{"a:b", "volume id"}},
		"two names":         {in(with(), with("rpcURL", `"unix:///t"`)), []string{`targets[1] "a".name`, "two targets"}},
		"one URL twice":     {in(with(), with("name", `"b"`)), []string{`targets[1] "b".rpcURL`, `"a"`}},
		"no URL":            {in(with("rpcURL", "")), []string{"rpcURL", "missing", "unix:///"}},
		"relative socket":   {in(with("rpcURL", `"unix://spdk.sock"`)), []string{"unix://spdk.sock", "absolute"}},
		"bare path":         {in(with("rpcURL", `"/var/tmp/spdk.sock"`)), []string{"want unix:///"}},
		"password in URL":   {in(with("rpcURL", `"http://u:hidden@h:1"`)), []string{"secret.json"}},
		"iscsi":             {in(with("targetType", `"iSCSI"`)), []string{"targetType", "iSCSI", "not supported", "nvme-tcp"}},
		"misspelt type":     {in(with("targetType", `"nvme-rmda"`)), []string{"did you mean nvme-rdma"}},
		"unknown type":      {in(with("targetType", `"fibre-channel"`)), []string{"want nvme-tcp or nvme-rdma"}},
		"no type":           {in(with("targetType", "")), []string{"targetType", "missing"}},
		"no address":        {in(with("targetAddr", "")), []string{"addresses", "missing"}},
		"both addresses":    {in(with("addresses", `["192.0.2.1"]`)), []string{"one of both"}},
		"address with port": {in(with("targetAddr", `"192.0.2.1:4421"`)), []string{"192.0.2.1:4421", "always 4420", "addresses"}},
		"host name":         {in(with("targetAddr", `"storage"`)), []string{"storage", "not an IP address"}},
		"unspecified":       {in(with("targetAddr", `"0.0.0.0"`)), []string{"unspecified"}},
		"link-local":        {in(with("targetAddr", `"fe80::1%eth0"`)), []string{"link-local"}},
		"IPv4 link-local":   {in(with("targetAddr", `"169.254.1.1"`)), []string{"link-local"}},
		"multicast":         {in(with("targetAddr", `"ff02::1"`)), []string{"multicast"}},
		"zone":              {in(with("targetAddr", `"2001:db8::1%eth0"`)), []string{"zone"}},
		"address twice":     {in(with("targetAddr", "", "addresses", `["192.0.2.1", "192.0.2.1:4420"]`)), []string{"addresses[1]", "twice"}},
		"port 0":            {in(with("targetAddr", "", "addresses", `["192.0.2.1:0"]`)), []string{"addresses[0]", "port 0"}},
		"store":             {in(with("lvolStores", `["lvs0/x"]`)), []string{"lvolStores[0]", "lvs0/x"}},
		"forget":            {in(with("forget", `["pvc-1"]`)), []string{"forget[0]", "pvc-1"}},
		"store twice":       {in(with("lvolStores", `["a", "a"]`)), []string{"lvolStores[1]"}},
		"topology key":      {in(with("topology", `{"a b": "c"}`)), []string{"topology", "a b"}},
		"topology value":    {in(with("topology", `{"a": "-"}`)), []string{"topology", `"-"`}},
		"topology twice":    {in(with("topology", `{"a": "b", "A": "b"}`)), []string{"same key"}},
		"all mistakes":      {in(with("targetType", `"x"`), with("name", `"b"`, "rpcURL", `"ftp://h"`)), []string{"targetType", "ftp://h"}},
	} {
		t.Run(name, func(t *testing.T) {
			targets, err := Parse([]byte(c.text))
			testkit.WantError(t, c.text, err, nil, c.words...)
			if targets != nil || err != nil && strings.Contains(err.Error(), "hidden") {
				t.Errorf("%v, %v", targets, err)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent")
	testkit.WantError(t, "no file", testkit.Err(Read(absent, "")), os.ErrNotExist, absent)
	testkit.WantError(t, "a directory", testkit.Err(Read(t.TempDir(), "")), errs.Invalid, "regular file")
	testkit.WantError(t, "no secret", testkit.Err(Read("testdata/config.json", "")), errs.Invalid, "testdata/config.json", `"localhost"`, "rpcTokens", "secret.json")
	testkit.WantError(t, "absent secret", testkit.Err(Read("testdata/config.json", absent)), os.ErrNotExist, absent)
	big := write(t, "big", strings.Repeat(" ", maxSize+1))
	testkit.WantError(t, "a large file", testkit.Err(Read(big, "")), errs.Invalid, "1048576")
	for text, word := range map[string]string{
		`{"rpcTokens": []}`: "needs a user and password",
		`{"rpcTokens": [{"name": "other", "username": "u", "password": "hidden"}]}`:                                                   "needs a user and password",
		`{"rpcTokens": [{"username": "u", "password": "hidden"}]}`:                                                                    "missing",
		`{"rpcTokens": [{"name": "localhost", "username": "u:v", "password": "hidden"}]}`:                                             "u:v",
		`{"rpcTokens": [{"name": "localhost", "username": "u"}]}`:                                                                     "password: it is empty",
		`{"rpcTokens": [{"name": "localhost", "username": "u", "password": "hidden\n"}]}`:                                             "line break",
		`{"rpcTokens": [{"name": "localhost", "user": "u", "password": "hidden"}]}`:                                                   `no key "user"`,
		`{"rpcTokens": [{"name": "a", "username": "u", "password": "hidden"}, {"name": "a", "username": "u", "password": "hidden"}]}`: "two entries",
		`{"rpcToken": [{"name": "localhost", "username": "u", "password": "hidden"}]}`:                                                `mean "rpcTokens"`,
		`{"rpcTokens": [{"name": "localhost", "username": "u", "password": ["hidden"]}]}`:                                             "a list",
		"rpcTokens:\n- name: localhost\n  password: hidden: x\n":                                                                      "neither YAML",
	} {
		secret := write(t, "secret.json", text)
		_, err := Read("testdata/config.json", secret)
		testkit.WantError(t, text, err, errs.Invalid, word, secret)
		if err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("the password is in %v", err)
		}
	}
}

// A changed password takes effect without a restart; no password is printed.
func TestPasswordRotation(t *testing.T) {
	entry := func(name, user, password string) string {
		return fmt.Sprintf(`{"rpcTokens": [{"name": %q, "username": %q, "password": %q}]}`, name, user, password)
	}
	secret := write(t, "secret.json", entry("localhost", "u", "hidden-1"))
	target := testkit.Value(Read("testdata/config.json", secret))(t)[0]
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if text := fmt.Sprintf(format, target); strings.Contains(text, "hidden") {
			t.Errorf("%s prints the password: %s", format, text)
		}
	}
	replace := func(text string) { testkit.Must(t, os.WriteFile(secret, []byte(text), 0o600)) }
	replace(entry("localhost", "u", "hidden-2"))
	if p, err := target.Password.Read(); err != nil || p != "hidden-2" {
		t.Errorf("password %q, %v", p, err)
	}
	replace(entry("localhost", "v", "hidden-2"))
	testkit.WantError(t, "another user", testkit.Err(target.Password.Read()), errs.Precondition, "restart")
	replace(entry("other", "u", "hidden-2"))
	testkit.WantError(t, "no entry", testkit.Err(target.Password.Read()), errs.Precondition, "localhost")
	replace("")
	testkit.WantError(t, "an empty file", testkit.Err(target.Password.Read()), errs.Invalid, secret)
}

// What Parse accepts is complete and unambiguous.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"config.json", "secret.json", "targets.yaml"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("targets: [{name: a, rpcURL: 'unix:///s', targetType: nvme-tcp, addresses: ['[::1]']}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, _ = parseTokens(text) // must not panic
		targets, err := Parse(text)
		if (err == nil) != (len(targets) > 0) {
			t.Fatalf("%d targets, %v", len(targets), err)
		}
		names := map[string]bool{}
		for _, target := range targets {
			if names[target.Name] || !targetName.MatchString(target.Name) || (target.Socket == "") == (target.URL == "") || target.Transport == "" || len(target.Addresses) == 0 {
				t.Errorf("accepted %+v", target)
			}
			names[target.Name] = true
			for _, a := range target.Addresses {
				if !a.IsValid() || a.Port() == 0 || a.Addr().IsUnspecified() || a.Addr().Zone() != "" {
					t.Errorf("accepted the address %s", a)
				}
			}
		}
	})
}
