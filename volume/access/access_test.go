package access_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/volume/access"
)

const pool = "0198a6b2-7c1e-7b5e-9d0a-0123456789ab"

func file() map[string]string {
	return map[string]string{"targetType": "file", "pool": pool, "file": "volumes/vol-1"}
}

func TestEncode(t *testing.T) {
	a := access.File{Pool: pool, Name: "volumes/vol-1"}
	if diff := cmp.Diff(file(), access.Encode(a)); diff != "" {
		t.Errorf("Encode (-want +got):\n%s", diff)
	}
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
		foreign := rapid.MapOf(rapid.StringMatching(`[a-z.]+/[a-z]+`), rapid.String()).Draw(t, "other people's keys")
		got, err := access.Decode(foreign, access.Encode(a))
		if err != nil || got != access.Access(a) {
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

// FuzzDecode: what is admitted stays below the pool, and is written as it was
// read.
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
