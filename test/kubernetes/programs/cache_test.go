package programs

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestPrune(t *testing.T) {
	var log bytes.Buffer
	b := &builder{cache: t.TempDir(), log: &log}
	now := time.Now()
	id := func(c string) string { return strings.Repeat(c, hashLength) }
	for name, age := range map[string]time.Duration{
		id("a"): 300 * time.Hour, // in use, just requested
		id("b"): 200 * time.Hour, // the newest other set
		id("c"): 201 * time.Hour,
		id("d"): 202 * time.Hour,
		"abcd":  999 * time.Hour, // not a set
		id("z"): 999 * time.Hour,
	} {
		dir := filepath.Join(b.cache, name)
		testkit.Must(t, errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "kubelet"), nil, 0o755), os.Chtimes(dir, now, now.Add(-age))))
	}
	testkit.Must(t, b.prune(id("a"), now))
	if got, want := entries(t, b.cache), []string{id("a"), "abcd", id("b"), id("z")}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	if got := lines(log.String(), "removing"); len(got) != 2 {
		t.Errorf("the log: %q", got)
	}

	// Recently used sets are all kept.
	for _, name := range []string{id("e"), id("f")} {
		dir := filepath.Join(b.cache, name)
		testkit.Must(t, errors.Join(os.Mkdir(dir, 0o755), used(dir)))
	}
	testkit.Must(t, b.prune(id("a"), now.Add(time.Minute)))
	if got, want := entries(t, b.cache), []string{id("a"), "abcd", id("e"), id("f"), id("z")}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
}

func TestCacheDir(t *testing.T) {
	for _, c := range []struct{ cache, home, user, want string }{
		{cache: "/c", home: "/h", want: "/c/kubernetes"},
		{home: "/h", want: "/h/.cache/cleat/kubernetes"},
		{home: "/h", user: "/u", want: "/u/cleat/kubernetes"},
		{},
	} {
		t.Setenv("CLEAT_CACHE", c.cache)
		t.Setenv("HOME", c.home)
		t.Setenv("XDG_CACHE_HOME", c.user)
		got, err := cacheDir()
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "CLEAT_CACHE") {
			t.Errorf("error %v does not name CLEAT_CACHE", err)
		}
	}
}

func TestCRDs(t *testing.T) {
	set := Set{Dir: t.TempDir()}
	if _, err := set.CRDs("snapshots"); err == nil || !strings.Contains(err.Error(), "want one of csi-addons, snapshot") {
		t.Errorf("unknown name: got error %v", err)
	}
	if _, err := set.CRDs("snapshot"); err == nil || !strings.Contains(err.Error(), "build a program") {
		t.Errorf("set without CRDs: got error %v", err)
	}
	file := filepath.Join(set.Dir, crdsDir, "snapshot", "a.yaml")
	testkit.Must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o644)))
	if got, err := set.CRDs("snapshot"); err != nil || !slices.Equal(got, []string{file}) {
		t.Errorf("%v, %v", got, err)
	}
}
