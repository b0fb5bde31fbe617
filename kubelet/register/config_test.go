package register

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/internal/unixsock"
)

const kubelet = "/var/lib/kubelet/plugins_registry"

func driver(name string) Plugin {
	return Plugin{Type: CSI, Name: name, Endpoint: "/run/cleat/csi/csi.sock", Versions: []string{"1.0.0"}}
}

func TestSocketNames(t *testing.T) {
	for want, c := range map[string]Config{
		kubelet + "/csi.cleat.dev-reg.sock":                   {Dir: kubelet, Plugin: driver("csi.cleat.dev")},
		"/x/csi.cleat.dev-reg.sock":                           {Dir: "/x//y/../", Plugin: driver("csi.cleat.dev")},
		"/x/vendor.com_vf_a-reg.sock":                         {Dir: "/x", Plugin: Plugin{Type: Device, Name: "vendor.com/vf_a", Endpoint: "/a", Versions: []string{"v1alpha1", "v1beta1"}}},
		"/x/dra.cleat.dev-reg.sock":                           {Dir: "/x", Plugin: Plugin{Type: DRA, Name: "dra.cleat.dev", Endpoint: "/a", Versions: []string{"v1.DRAPlugin"}}},
		"/x/dra.cleat.dev-0a1b-2c3d-reg.sock":                 {Dir: "/x", UID: "0a1b-2c3d", Plugin: Plugin{Type: DRA, Name: "dra.cleat.dev", Endpoint: "/a", Versions: []string{"v1.DRAPlugin"}}},
		"/x/mine-reg.sock":                                    {Dir: "/x", Plugin: Plugin{Type: "Lighting", Name: "mine", Endpoint: "/a", Versions: []string{"anything"}}},
		kubelet + "/" + strings.Repeat("d", 64) + "-reg.sock": {Dir: kubelet, Plugin: driver(strings.Repeat("d", 64))},
	} {
		if got, err := c.check(); got != want || err != nil {
			t.Errorf("%+v: got %q, %v, want %q", c, got, err, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	change := func(f func(*Config)) Config {
		c := Config{Dir: kubelet, Plugin: driver("csi.cleat.dev")}
		f(&c)
		return c
	}
	device := func(name string, versions ...string) Plugin {
		return Plugin{Type: Device, Name: name, Endpoint: "/a", Versions: versions}
	}
	for name, c := range map[string]struct {
		config Config
		words  []string
	}{
		"108 bytes":           {change(func(c *Config) { c.Plugin.Name = strings.Repeat("d", 65) }), []string{"108 bytes", "107", "the directory (33 bytes)", "the name (65 bytes)", "by 1"}},
		"microk8s and a UID":  {Config{Dir: "/var/snap/microk8s/common/var/lib/kubelet/plugins_registry", UID: "123e4567-e89b-12d3-a456-426614174000", Plugin: Plugin{Type: DRA, Name: "dra.cleat.dev", Endpoint: "/a", Versions: []string{"v1.DRAPlugin"}}}, []string{"too long", "by 11"}},
		"relative directory":  {change(func(c *Config) { c.Dir = "plugins_registry" }), []string{`"plugins_registry"`, "/var/lib/kubelet/plugins_registry"}},
		"no directory":        {change(func(c *Config) { c.Dir = "" }), []string{`""`}},
		"NUL":                 {change(func(c *Config) { c.Dir = "/a\x00b" }), []string{"absolute"}},
		"no type":             {change(func(c *Config) { c.Plugin.Type = "" }), []string{"CSIPlugin", "DRAPlugin"}},
		"no name":             {change(func(c *Config) { c.Plugin.Name = "" }), []string{`""`}},
		"name with a slash":   {change(func(c *Config) { c.Plugin.Name = "../x" }), []string{`"../x"`}},
		"hidden name":         {change(func(c *Config) { c.Plugin.Name = ".x" }), []string{"begin with a dot"}},
		"name with a newline": {change(func(c *Config) { c.Plugin.Name = "x\n" }), []string{`"x\n"`}},
		"no resource":         {change(func(c *Config) { c.Plugin = device("vfs", "v1beta1") }), []string{`"vfs"`, "vendor.com/device"}},
		"two slashes":         {change(func(c *Config) { c.Plugin = device("a/b/c", "v1beta1") }), []string{`"a/b/c"`}},
		"no endpoint":         {change(func(c *Config) { c.Plugin.Endpoint = "" }), []string{"endpoint"}},
		"a scheme":            {change(func(c *Config) { c.Plugin.Endpoint = "unix:///run/x.sock" }), []string{"unix:///run/x.sock", "without a scheme"}},
		"unclean endpoint":    {change(func(c *Config) { c.Plugin.Endpoint = "/run/../x.sock" }), []string{"/x.sock"}},
		"long endpoint":       {change(func(c *Config) { c.Plugin.Endpoint = "/" + strings.Repeat("e", 107) }), []string{"endpoint", "108 bytes"}},
		"no versions":         {change(func(c *Config) { c.Plugin.Versions = nil }), []string{"versions"}},
		"an empty version":    {change(func(c *Config) { c.Plugin.Versions = []string{"1.0.0", ""} }), []string{"versions"}},
		"CSI 2":               {change(func(c *Config) { c.Plugin.Versions = []string{"2.0.0", "0.3.0", "1"} }), []string{"1.x", "2.0.0"}},
		"old device plugin":   {change(func(c *Config) { c.Plugin = device("a.b/c", "v1alpha1") }), []string{"v1beta1", "v1alpha1"}},
		"UID of a CSI driver": {change(func(c *Config) { c.UID = "123" }), []string{"DRAPlugin only", "one instance per node"}},
		"UID of a device":     {change(func(c *Config) { c.UID, c.Plugin = "123", device("a.b/c", "v1beta1") }), []string{"DRAPlugin only", "DevicePlugin by name"}},
		"bad UID":             {Config{Dir: "/x", UID: "../x", Plugin: Plugin{Type: DRA, Name: "d", Endpoint: "/a", Versions: []string{"v1.DRAPlugin"}}}, []string{`"../x"`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(c.config)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, word := range c.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error lacks %q: %v", word, err)
				}
			}
		})
	}
	_, err := New(Config{Dir: kubelet, Plugin: driver(strings.Repeat("d", 65))})
	if !errors.Is(err, unixsock.ErrTooLong) {
		t.Errorf("108 bytes: %v", err)
	}
}

// An accepted name results in a socket directly in the directory, visible to a
// kubelet, with a path that fits a socket address.
func FuzzSocketName(f *testing.F) {
	for _, s := range [][4]string{
		{kubelet, CSI, "csi.cleat.dev", ""}, {"/x", Device, "a.b/c_d", ""}, {"/x/../y/", DRA, "d", "0-1"}, {"/", "Other", "..", "/"},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	f.Fuzz(func(t *testing.T, dir, kind, name, uid string) {
		versions := []string{"1.0.0", "v1beta1", "v1.DRAPlugin"}
		socket, err := Config{Dir: dir, UID: uid, Plugin: Plugin{Type: kind, Name: name, Endpoint: "/a", Versions: versions}}.check()
		if err != nil {
			return
		}
		base := filepath.Base(socket)
		if len(socket) > unixsock.MaxPath || base[0] == '.' || filepath.Dir(socket) != filepath.Clean(dir) || !strings.HasSuffix(base, "-reg.sock") {
			t.Errorf("%q, %q, %q, %q: %q", dir, kind, name, uid, socket)
		}
	})
}
