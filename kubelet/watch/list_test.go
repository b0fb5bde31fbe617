package watch

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestWait(t *testing.T) {
	r := startRig(t, func(o *Options) { o.BackOff.First = time.Minute })
	type result struct {
		Status
		error
	}
	waited := make(chan result, 2)
	for _, kind := range []string{"", "T"} {
		go func() {
			s, err := r.Wait(t.Context(), kind, "n")
			waited <- result{s, err}
		}()
	}
	newPlugin(t, r.path("a.sock"), "T", "n", nil)
	for range 2 {
		if got := <-waited; got.error != nil || got.Socket != r.path("a.sock") || got.Phase != Registered {
			t.Errorf("got %+v", got)
		}
	}
	if s, err := r.Wait(t.Context(), "T", "n"); err != nil || s.Name != "n" {
		t.Errorf("there already: %+v, %v", s, err)
	}
	newPlugin(t, r.path("b.sock"), "U", "waits", nil)
	r.phase("b.sock", Failed)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for name, want := range map[string]string{
		"waits": "this host handles T;", "n": "is registered since", "none": `no socket below`,
	} {
		_, err := r.Wait(ctx, "U", name)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
	go func() {
		_, err := r.Wait(t.Context(), "U", "waits")
		waited <- result{error: err}
	}()
	testkit.Must(t, r.Close(t.Context(), false))
	if got := <-waited; !errors.Is(got.error, ErrClosed) {
		t.Errorf("closed: %v", got.error)
	}
	if _, err := r.Wait(t.Context(), "U", "waits"); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestWhy(t *testing.T) {
	r := startRig(t, func(o *Options) { o.BackOff.First = time.Minute })
	newPlugin(t, r.path("a.sock"), "T", "good", nil)
	newPlugin(t, r.path("b.sock"), "U", "bad", nil)
	aside := r.dir + "-aside"
	testkit.Must(t, os.Mkdir(aside, 0o750), os.Symlink(aside, r.path("dir")), os.Mkdir(r.path("sub"), 0o750),
		os.WriteFile(r.path("file"), nil, 0o600), unix.Mkfifo(r.path("pipe"), 0o600), os.Symlink("nowhere", r.path("dangling")))
	l := testkit.Value(net.Listen("unix", aside+"/s"))(t)
	defer l.Close()
	r.phase("a.sock", Registered)
	r.phase("b.sock", Failed)
	for word, c := range map[string]struct {
		found int
		want  string
	}{
		"good":             {1, "T good at " + r.path("a.sock") + " is registered since"},
		"a.sock":           {1, "is registered since"},
		r.path("b.sock"):   {1, "U bad at " + r.path("b.sock") + " is not registered, it failed 1 times, the last time"},
		"bad":              {1, "this host handles T; types are case-sensitive. Next try in"},
		"none":             {0, `has the name "none"`},
		"":                 {0, "is the directory of this host itself"},
		"file":             {0, "is a regular file, not a socket"},
		"pipe":             {0, "is a pipe, not a socket"},
		"sub":              {0, "is a directory, not a socket"},
		"dangling":         {0, "is a symbolic link that does not point to a socket"},
		r.path("dir/s"):    {0, "is a symbolic link to a directory; such links are not followed"},
		r.path("none/s"):   {0, r.path("none") + " does not exist"},
		r.path("sub/.s"):   {0, "is ignored because .s begins with a dot"},
		aside + "/s":       {0, "is not below " + r.dir},
		r.path("../other"): {0, "is not below"},
	} {
		found, why := r.Why(word)
		if len(found) != c.found || !strings.Contains(why, c.want) {
			t.Errorf("why %q: %d, %s\nwant %q", word, len(found), why, c.want)
		}
	}
	testkit.Must(t, r.Close(t.Context(), false))
	if _, why := r.Why("none"); !strings.Contains(why, "closed") {
		t.Errorf("after Close: %s", why)
	}
	if found, _ := r.Why("good"); len(found) != 1 {
		t.Errorf("after Close: %v", found)
	}
}

func TestFindNeedsAName(t *testing.T) {
	r := startRig(t, nil)
	accepting(t, r.path("a.sock"), "", false)
	r.phase("a.sock", Asking)
	if got := r.Find(""); len(got) != 0 {
		t.Errorf("found %v by no name", got)
	}
}
