package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

// output runs a program of a set.
func output(t *testing.T, set Set, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), set.Path(name), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// entries returns the names in a directory.
func entries(t *testing.T, dir string) []string {
	t.Helper()
	found := testkit.Value(os.ReadDir(dir))(t)
	var all []string
	for _, e := range found {
		all = append(all, e.Name())
	}
	return all
}

func mustBuild(t *testing.T, b *builder, want ...string) Set {
	t.Helper()
	set := testkit.Value(b.build(t.Context(), want))(t)
	return set
}

func TestBuild(t *testing.T) {
	var log bytes.Buffer
	b := fixture(t, &log)
	set := mustBuild(t, b)
	for name, want := range map[string]string{"first": "alpha v1.2.312", "beta": "beta v1.2.312", "gamma": "gamma v0.4.004", "tool": "tool v1.9.019"} {
		if got := output(t, set, name); got != want {
			t.Errorf("%s prints %q, want %q", name, got, want)
		}
	}
	if diff := cmp.Diff([]string{"beta", "crds", "first", "gamma", "tool"}, entries(t, set.Dir)); diff != "" {
		t.Errorf("the set (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"things.yaml"}, entries(t, filepath.Join(set.Dir, crdsDir, "things"))); diff != "" {
		t.Errorf("the definitions (-want +got):\n%s", diff)
	}
	for _, line := range []string{"nested: building first, beta, gamma\n", "nested: gamma, 1 MB\n", "tool: built in "} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("the log has no %q:\n%s", line, &log)
		}
	}

	log.Reset()
	long := time.Now().Add(-idleLimit)
	testkit.Must(t, os.Chtimes(set.Dir, long, long))
	if again := mustBuild(t, b); again != set || log.Len() > 0 {
		t.Errorf("second build: %v, %s", again, &log)
	}
	if info, err := os.Stat(set.Dir); err != nil {
		t.Error(err)
	} else if time.Since(info.ModTime()) > idleLimit/2 {
		t.Errorf("the set was just used, but its time is %v", info.ModTime())
	}
	// Complete parts are kept, missing and incomplete ones are built.
	testkit.Must(t, errors.Join(os.Remove(set.Path("first")), os.Truncate(set.Path("tool"), 0)))
	mustBuild(t, b, "first", "tool", "first", "all.test")
	if got := output(t, set, "first") + output(t, set, "tool"); got != "alpha v1.2.312tool v1.9.019" {
		t.Errorf("after the rebuild they print %q", got)
	}
	if got := output(t, set, "all.test"); got != "PASS\n" {
		t.Errorf("the test binary prints %q", got)
	}
	if building := lines(log.String(), "building"); !slices.Equal(building, []string{"nested: building first", "nested: building all.test", "tool: building tool"}) {
		t.Errorf("got builds %q", building)
	}
	if got := entries(t, b.cache); !slices.Equal(got, []string{filepath.Base(set.Dir), "lock"}) {
		t.Errorf("got cache entries %v", got)
	}
}

// lines returns the lines of a text that contain the word.
func lines(text, word string) []string {
	return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return !strings.Contains(line, word) })
}

func TestBuildOfSomePrograms(t *testing.T) {
	b := fixture(t, nil)
	set := mustBuild(t, b, "tool")
	if got := entries(t, set.Dir); !slices.Equal(got, []string{"tool"}) {
		t.Errorf("the set has %v", got)
	}
}

func TestHashDependsOnItsInputs(t *testing.T) {
	b := fixture(t, nil)
	hash := func() string {
		t.Helper()
		h := testkit.Value(b.hash(t.Context()))(t)
		return h
	}
	seen := []string{hash()}
	if again := hash(); again != seen[0] {
		t.Errorf("the hash is %s, then %s", seen[0], again)
	}
	changed := func(what string) {
		t.Helper()
		if h := hash(); slices.Contains(seen, h) {
			t.Errorf("the hash does not depend on %s", what)
		} else {
			seen = append(seen, h)
		}
	}
	for _, file := range []string{"nested/go.mod", "nested/go.sum", "tools/tool.mod", "tools/tool.sum"} {
		f := testkit.Value(os.OpenFile(filepath.Join(b.root, file), os.O_APPEND|os.O_WRONLY, 0))(t)
		testkit.Value(f.WriteString("\n"))(t)
		testkit.Must(t, f.Close())
		changed(file)
	}
	b.modules[0].sources[0].programs[0].pkg = "cmd/beta"
	changed("a target")
	b.modules[0].sources[0].stamp = nil
	changed("a stamp")
	t.Setenv("GOAMD64", "v3")
	t.Setenv("GOARM64", "v9.0")
	changed("the machine that is built for")
}

func TestFailedBuild(t *testing.T) {
	b := fixture(t, nil)
	if _, err := b.build(t.Context(), []string{"kublet"}); err == nil || !strings.Contains(err.Error(), `"kublet": want some of first, beta, all.test, gamma, tool`) {
		t.Errorf("unknown name: got error %v", err)
	}
	b.modules[0].sources[0].programs[0].pkg = "cmd/broken"
	_, err := b.build(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "undefined: nothing") || !strings.Contains(err.Error(), filepath.Join(b.root, "nested")) {
		t.Errorf("compile error: got error %v", err)
	}
	id := testkit.Value(b.hash(t.Context()))(t)
	if got := entries(t, filepath.Join(b.cache, id)); len(got) > 0 {
		t.Errorf("failed build left %v in the set", got)
	}
	if got := entries(t, b.cache); !slices.Equal(got, []string{id, "lock"}) {
		t.Errorf("failed build left %v in the cache", got)
	}
	b.modules = fixtureModules()
	testkit.Must(t, os.WriteFile(filepath.Join(b.root, "nested", "go.sum"), nil, 0o644))
	if _, err := b.build(t.Context(), []string{"beta"}); err == nil || !strings.Contains(err.Error(), "missing go.sum entry") {
		t.Errorf("incomplete go.sum: got error %v", err)
	}
	b.modules[0].sources[0].path = "example.test/absent"
	if _, err := b.build(t.Context(), []string{"beta"}); err == nil || !strings.Contains(err.Error(), "example.test/absent") {
		t.Errorf("module missing in go.mod: got error %v", err)
	}
}

// Of concurrent builds of the same set, one builds and the others wait.
func TestConcurrentBuilds(t *testing.T) {
	b, asked, release := blockedFixture(t, "example.test/tool")
	var logs [3]testkit.Log
	var dirs [3]string
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	for i := range logs {
		cmd := buildProcess(t.Context(), b)
		cmd.Stderr = &logs[i]
		all.Go(func() {
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%v\n%s", err, &logs[i])
			}
			dirs[i] = string(out)
		})
	}
	text := func() string { return logs[0].String() + logs[1].String() + logs[2].String() }
	wait(t, "download", asked)
	testkit.Must(t, testkit.Poll(patience, nil, func() error { // while the first one cannot end
		if got := lines(text(), "another process"); len(got) != 2 {
			return fmt.Errorf("%d of 3 wait:\n%s", len(got), text())
		}
		return nil
	}))
	release()
	all.Wait()
	if dirs[0] != dirs[1] || dirs[1] != dirs[2] {
		t.Errorf("their sets are %q", dirs)
	}
	if got := lines(text(), "building"); len(got) != len(b.modules) {
		t.Errorf("they built %q", got)
	}
}

// blockedFixture returns a fixture whose proxy blocks requests for one module
// until release is called; asked gets the request.
func blockedFixture(t *testing.T, path string) (b *builder, asked <-chan context.Context, release func()) {
	t.Helper()
	b = fixture(t, nil)
	requests, gate := make(chan context.Context, 1), make(chan struct{})
	emptyModuleCache(t)
	t.Setenv("GOPROXY", proxy(t, func(r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/"+path+"/") || !strings.HasSuffix(r.URL.Path, ".zip") {
			return
		}
		select {
		case requests <- r.Context():
		default:
		}
		select {
		case <-gate:
		case <-r.Context().Done():
		}
	}))
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	return b, requests, release
}

// patience is how long tests wait for a build on a busy machine, whose compiler
// cache can be empty. No passing test waits this long.
const patience = 5 * time.Minute

func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %s", what, patience)
		panic("unreachable")
	}
}

// A build killed during the second module leaves the first one complete and the
// cache unlocked; the next build continues.
func TestKilledBuild(t *testing.T) {
	b, asked, release := blockedFixture(t, "example.test/tool")
	cmd := buildProcess(t.Context(), b)
	var killed bytes.Buffer
	cmd.Stderr = &killed
	testkit.Must(t, cmd.Start())
	request := wait(t, "download", asked)
	testkit.Must(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Error("the killed process succeeded")
	}
	wait(t, "end of the go command", request.Done())
	release()
	id := testkit.Value(b.hash(t.Context()))(t)
	if got := entries(t, filepath.Join(b.cache, id)); !slices.Equal(got, []string{"beta", "crds", "first", "gamma"}) {
		t.Errorf("the set has %v\n%s", got, &killed)
	}
	if got := entries(t, b.cache); len(got) != 3 || !strings.HasPrefix(got[0], making) {
		t.Errorf("got cache entries %v: the kill was not during the build", got)
	}
	var log bytes.Buffer
	b.log = &log
	set := mustBuild(t, b)
	if got := output(t, set, "tool"); got != "tool v1.9.019" {
		t.Errorf("tool prints %q", got)
	}
	if got := lines(log.String(), "building"); !slices.Equal(got, []string{"tool: building tool"}) {
		t.Errorf("got builds %q after the kill", got)
	}
	if got := entries(t, b.cache); !slices.Equal(got, []string{id, "lock"}) {
		t.Errorf("the cache has %v", got)
	}
}

// Cancelling the context ends both the go command and the wait for another
// process.
func TestCancelledBuild(t *testing.T) {
	b, asked, _ := blockedFixture(t, "example.test/other")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := fixtureIn(b.root, nil).build(ctx, nil)
			failed <- err
		}()
	}
	request := wait(t, "download", asked)
	cancel()
	for range 2 {
		if err := wait(t, "end of a build", failed); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled build: got error %v", err)
		}
	}
	wait(t, "end of the go command", request.Done())
	for _, name := range entries(t, b.cache) {
		if strings.HasPrefix(name, making) {
			t.Errorf("left %s", name)
		}
	}
}
