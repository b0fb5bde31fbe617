package unixsock

import (
	"path/filepath"
	"strings"
	"testing"
)

// FuzzParseEndpoint: what is taken is an absolute path that means one thing.
func FuzzParseEndpoint(f *testing.F) {
	for _, seed := range []string{"unix:///run/x.sock", "unix:/run/x.sock", "/run/x.sock", "tcp://1.2.3.4:1", "unix://x.sock", "unix:///a/../b.sock", "unix:///\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		path, err := ParseEndpoint(endpoint)
		if err == nil && (!filepath.IsAbs(path) || strings.ContainsRune(path, 0)) {
			t.Errorf("%q leads to %q", endpoint, path)
		}
	})
}
