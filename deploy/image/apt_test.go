package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

const offered = `NOTE: whatever
'http://deb.example/pool/a/attr_2.5.deb' libattr1_1%3a2.5.1-4_amd64.deb 12 SHA256:3eb1ea6d85488f488cc2a163b98ad640ef88cee4c79287cf14e361aaf6206f47
'http://deb.example/pool/g/gcc.deb' g++_4%2b1~x_amd64.deb 13 SHA256:8b9f4223957c327ea355c66876014f8a0ba6c74964c237266442fffa02fbf62e
'http://security.example/pool/g/gcc.deb' g++_4%2b1~x_amd64.deb 13 SHA256:8b9f4223957c327ea355c66876014f8a0ba6c74964c237266442fffa02fbf62e
`

func TestParseArchives(t *testing.T) {
	got, err := parseArchives(offered, []string{"libattr1", "g++"})
	want := []archive{
		{"g++_4%2b1~x_amd64.deb", "8b9f4223957c327ea355c66876014f8a0ba6c74964c237266442fffa02fbf62e"},
		{"libattr1_1%3a2.5.1-4_amd64.deb", "3eb1ea6d85488f488cc2a163b98ad640ef88cee4c79287cf14e361aaf6206f47"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Fatalf("%v (-want +got)\n%s", err, diff)
	}
	if got[1].Name() != "libattr1" || got[1].Version() != "1:2.5.1-4" {
		t.Errorf("got name %s and version %s", got[1].Name(), got[1].Version())
	}
	for _, bad := range []string{"", offered + "'http://x' ../../x_1_amd64.deb 1 SHA256:" + got[0].SHA256 + "\n", "'http://x' libattr1_1_amd64.deb 1 MD5Sum:00\n",
		strings.Replace(offered, "libattr1", "libacl1", 1)} {
		if got, err := parseArchives(bad, []string{"libattr1", "g++"}); err == nil {
			t.Errorf("%q: got %v, want an error", bad, got)
		}
	}
}

// The configuration changes nothing on the machine and clears its hooks.
func TestConfigOfApt(t *testing.T) {
	text := apt{dir: "/cache/apt", architecture: "arm64"}.config()
	for _, want := range []string{`Dir::State::lists "/cache/apt/lists/";`, `Dir::Cache "/cache/apt/cache/";`, "#clear APT::Update;", `APT::Architecture "arm64";`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// The source of another release is the machine's mirror with the machine's keys.
func TestSourceOf(t *testing.T) {
	const targets = "https://deb.example/security/ bookworm-security main /keys/a.gpg\nhttps://deb.example/debian/ bookworm contrib /keys/a.gpg\n"
	for target, want := range map[string]string{
		"https://deb.example/debian/ bookworm main /keys/a.gpg\n": "deb [signed-by=/keys/a.gpg] https://deb.example/debian/ testing main\n",
		"https://deb.example/debian/ bookworm main \n":            "deb https://deb.example/debian/ testing main\n",
	} {
		if got := testkit.Value(sourceOf("testing", targets+target))(t); got != want {
			t.Errorf("of %q: got %q, want %q", target, got, want)
		}
	}
	if got, err := sourceOf("testing", targets); err == nil || !strings.Contains(err.Error(), "no source of bookworm main") {
		t.Errorf("without the machine's release: got %q, %v", got, err)
	}
}

// A run without network can leave empty lists: they must not be reused.
func TestRenew(t *testing.T) {
	a := apt{dir: t.TempDir()}
	stamp := filepath.Join(a.dir, "updated")
	testkit.Must(t, os.WriteFile(stamp, nil, 0o600))
	cause := errors.New("no such package")
	for range 2 {
		if err := a.renew(cause); !errors.Is(err, cause) || !strings.Contains(err.Error(), "the next run") {
			t.Errorf("got error %v", err)
		}
		if _, err := os.Lstat(stamp); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the lists are still used: %v", err)
		}
	}
}

func TestPlace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	broken := errors.New("broken")
	err := place(dir, func(fresh string) error {
		return errors.Join(os.WriteFile(filepath.Join(fresh, "half"), nil, 0o600), broken)
	})
	if names := list(t, filepath.Dir(dir)); !errors.Is(err, broken) || len(names) > 0 {
		t.Errorf("after error %v: got files %v", err, names)
	}
	testkit.Must(t, place(dir, func(fresh string) error { return os.WriteFile(filepath.Join(fresh, "whole"), nil, 0o600) }))
	if diff := cmp.Diff([]string{"whole"}, list(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestPrune(t *testing.T) {
	cache := t.TempDir()
	set := func(letter string) string { return strings.Repeat(letter, 32) }
	for i, name := range []string{set("a"), set("b"), set("c"), set("d"), ".new-1", "apt-amd64", "mine"} {
		path := filepath.Join(cache, name)
		at := time.Unix(int64(1000+i), 0)
		testkit.Must(t, errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "f"), nil, 0o600), os.Chtimes(path, at, at)))
	}
	testkit.Must(t, prune(cache, set("a")))
	if diff := cmp.Diff([]string{set("a"), "apt-amd64", set("d"), "mine"}, list(t, cache)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestKeyDependsOnEachArchive(t *testing.T) {
	a := []archive{{"a_1_amd64.deb", "1"}, {"b_1_amd64.deb", "2"}}
	b := []archive{{"a_1_amd64.deb", "1"}, {"b_2_amd64.deb", "2"}}
	c := []archive{{"a_1_amd64.deb", "1"}, {"b_1_amd64.deb", "3"}}
	if key(a) == key(b) || key(a) == key(c) || key(a) != key(a[:2:2]) || !keyName.MatchString(key(a)) {
		t.Errorf("keys are not distinct: %s %s %s", key(a), key(b), key(c))
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries := testkit.Value(os.ReadDir(dir))(t)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
