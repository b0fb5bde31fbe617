package csi

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/kubelet/handler/internal/instance"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

func announced(versions ...string) watch.Plugin {
	return watch.Plugin{Type: Type, Name: name, Endpoint: "/run/csi.sock", Socket: "/run/reg.sock", Versions: versions}
}

// The version lists of the kubelet's own test, and its error texts.
func TestVersions(t *testing.T) {
	for _, c := range []struct {
		versions []string
		want     string // the version, or what is in the refusal
		refused  bool
	}{
		{[]string{"v1.0.0"}, "1.0.0", false},
		{[]string{"0.3.0"}, "highest supported version reported is 0.3.0, must be v1.x", true},
		{[]string{"0.2.0"}, "highest supported version reported is 0.2.0, must be v1.x", true},
		{[]string{"0.2.0", "v0.3.0"}, "highest supported version reported is 0.3.0, must be v1.x", true},
		{[]string{"0.2.0", "v1.0.0"}, "1.0.0", false},
		{[]string{"0.2.0", "v1.2.3"}, "1.2.3", false},
		{[]string{"v1.2.3", "v0.3.0"}, "1.2.3", false},
		{[]string{"v1.2.3", "v0.3.0", "2.0.1"}, "1.2.3", false},
		{[]string{"v1.2.3", "4.9.12", "v0.3.0", "2.0.1"}, "1.2.3", false},
		{[]string{"v1.2.3", "boo", "v0.3.0", "2.0.1"}, "1.2.3", false},
		{[]string{"4.9.12", "2.0.1"}, "could not find a highest supported version from versions ([4.9.12 2.0.1]) reported: <nil>", true},
		{[]string{}, "Plugin returned an empty list for supported versions", true},
		{[]string{"var", "boo", "foo"}, `None of the versions specified ["var" "boo" "foo"] are supported. err=could not find a highest supported version from versions ([var boo foo]) reported: could not parse "var" as version`, true},
	} {
		h := New(Options{})
		p := announced(c.versions...)
		err := h.Validate(t.Context(), p)
		if c.refused {
			testkit.WantError(t, "the error", err, nil, "validation failed for CSI Driver "+name+" at endpoint /run/csi.sock: kubernetes.io/csi: ValidatePlugin for CSI driver \""+name+"\" failed. ", c.want)
			continue
		}
		v, again := h.check("RegisterPlugin", p)
		if err != nil || again != nil || v.String() != c.want {
			t.Errorf("%q: got %v, %v, %v; want %s", c.versions, v, err, again, c.want)
		}
	}
}

// The kubelet's three cases of a driver that is already registered, and more.
func TestNameAlreadyRegistered(t *testing.T) {
	for what, c := range map[string]struct {
		name, endpoint, versions string
		refused                  bool
	}{
		"another name":        {"other.example.com", "/run/csi.sock", "1.0.0", false},
		"same version":        {name, "/run/other.sock", "1.2.0", true},
		"same, written short": {name, "/run/other.sock", "v1.2", true},
		"higher":              {name, "/run/other.sock", "v1.2.1", false},
		"higher by number":    {name, "/run/other.sock", "v1.10", false},
		"lower":               {name, "/run/other.sock", "1.1.9 0.3.0", true},
		"2.x does not help":   {name, "/run/other.sock", "1.2.0 2.0.0", true},
		"same endpoint":       {name, "/run/csi.sock", "1.2.0", false},
		"same endpoint lower": {name, "/run/csi.sock", "1.0.0", false},
	} {
		h := New(Options{})
		h.drivers[name] = instance.Set[entry]{}.With("/run/csi.sock", "/run/reg.sock", entry{Driver{Name: name}, version.MustParseGeneric("1.2.0")})
		p := announced(strings.Fields(c.versions)...)
		p.Name, p.Endpoint, p.Socket = c.name, c.endpoint, "/run/other-reg.sock"
		err := h.Validate(t.Context(), p)
		if c.refused {
			testkit.WantError(t, "the error", err, nil, "failed. Another driver with the same name is already registered with a higher supported version: \"1.2.0\"")
		} else if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestBadNamesAndEndpoints(t *testing.T) {
	for want, change := range map[string]func(*watch.Plugin){
		`the name ""`:                  func(p *watch.Plugin) { p.Name = "" },
		`the name "../../etc"`:         func(p *watch.Plugin) { p.Name = "../../etc" },
		`the name "a_b"`:               func(p *watch.Plugin) { p.Name = "a_b" },
		"at most 63":                   func(p *watch.Plugin) { p.Name = strings.Repeat("a", 64) },
		`announce "/run/csi/csi.sock"`: func(p *watch.Plugin) { p.Endpoint = "unix:///run/csi/csi.sock" },
		"relative":                     func(p *watch.Plugin) { p.Endpoint = "csi.sock" },
	} {
		h := New(Options{})
		p := announced("1.0.0")
		change(&p)
		testkit.WantError(t, "Validate", h.Validate(t.Context(), p), nil, want)
		testkit.WantError(t, "Register", h.Register(t.Context(), p), nil, want)
	}
	p := announced("1.0.0")
	p.Name = "CSI.Example.com" // upper case is allowed by CSI
	if err := New(Options{}).Validate(t.Context(), p); err != nil {
		t.Error(err)
	}
}

// The chosen version is the one that a simple implementation of the rules
// chooses.
func TestVersionChoiceMatchesRules(t *testing.T) {
	part := rapid.IntRange(0, 12)
	rapid.Check(t, func(t *rapid.T) {
		var versions []string
		var best []int
		for range rapid.IntRange(0, 6).Draw(t, "length") {
			if rapid.IntRange(0, 4).Draw(t, "odd") == 0 {
				versions = append(versions, rapid.SampledFrom([]string{"", "1", "v", "x1.2", "-1.0", "1..2", "01.3"}).Draw(t, "word"))
				continue
			}
			v := []int{rapid.IntRange(0, 3).Draw(t, "major"), part.Draw(t, "minor"), part.Draw(t, "patch")}
			text := fmt.Sprintf("%s%d.%d.%d%s", rapid.SampledFrom([]string{"", "v"}).Draw(t, "prefix"), v[0], v[1], v[2], rapid.SampledFrom([]string{"", "-rc1", "+x"}).Draw(t, "rest"))
			versions = append(versions, text)
			if v[0] <= 1 && (best == nil || v[0]*10000+v[1]*100+v[2] > best[0]*10000+best[1]*100+best[2]) {
				best = v
			}
		}
		got, err := New(Options{}).check("ValidatePlugin", announced(versions...))
		if (best == nil || best[0] == 0) != (err != nil) {
			t.Fatalf("%q: %v", versions, err)
		}
		if err == nil && got.String() != fmt.Sprintf("%d.%d.%d", best[0], best[1], best[2]) {
			t.Fatalf("%q: %s, want %v", versions, got, best)
		}
	})
}

// For any order of registrations, the highest registered version serves, and
// only its own deregistration removes an endpoint.
func TestHighestServes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := New(Options{})
		there := map[watchKey]int{} // minor versions
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			p := announced("1." + strconv.Itoa(rapid.IntRange(0, 4).Draw(t, "minor")))
			p.Endpoint = rapid.SampledFrom([]string{"/1", "/2", "/3"}).Draw(t, "endpoint")
			p.Socket = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "socket")
			key := watchKey{p.Endpoint, p.Socket}
			if rapid.Bool().Draw(t, "goes") {
				h.remove(p)
				delete(there, key)
			} else if v, err := h.check("RegisterPlugin", p); err == nil {
				for other, minor := range there {
					if other.endpoint != p.Endpoint && minor >= int(v.Minor()) {
						t.Fatalf("%v with 1.%d was accepted beside %v with 1.%d", key, v.Minor(), other, minor)
					}
				}
				h.drivers[name] = h.drivers[name].With(p.Endpoint, p.Socket, entry{Driver{Name: name, Endpoint: p.Endpoint, Contract: v.String()}, v})
				there[key] = int(v.Minor())
			}
			d, found := h.Driver(name)
			if found != (len(there) > 0) {
				t.Fatalf("found is %v with %v", found, there)
			}
			for other, minor := range there {
				if d.Contract < "1."+strconv.Itoa(minor) {
					t.Fatalf("%s serves with %s, %v has 1.%d", d.Endpoint, d.Contract, other, minor)
				}
			}
		}
	})
}

type watchKey struct{ endpoint, socket string }

// FuzzValidate: an accepted plugin has a name that is safe in a path, an
// endpoint that can be dialled, and a version 1.x.
func FuzzValidate(f *testing.F) {
	f.Add("csi.example.com", "/run/csi.sock", "1.0.0 v0.3")
	f.Add("a/b", "unix:///run/csi.sock", "2.0 boo")
	f.Add("", "", "")
	f.Add("x", "/\x00", "1.99999999999999999999999")
	f.Fuzz(func(t *testing.T, name, endpoint, versions string) {
		h := New(Options{})
		p := watch.Plugin{Type: Type, Name: name, Endpoint: endpoint, Versions: strings.Fields(versions)}
		err := h.Validate(t.Context(), p)
		v, again := h.check("ValidatePlugin", p)
		if (err == nil) != (again == nil) {
			t.Fatalf("%v, then %v", err, again)
		}
		if err != nil {
			return
		}
		if v.Major() != 1 || len(name) > 63 || strings.ContainsAny(name, "/\x00 ") || name == "" || name[0] == '.' || !strings.HasPrefix(endpoint, "/") {
			t.Errorf("accepted: %+v with %s", p, v)
		}
	})
}
