package pool_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/dpu/pool"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	id    = "0198a6b2-7c1e-7b5e-9d0a-0123456789ab"
	other = "0198a6b2-7c1e-7b5e-9d0a-0123456789ac"
)

func TestParse(t *testing.T) {
	in := map[string]string{id: "/srv/a", other: "/srv/b"}
	got, err := pool.Parse(in)
	if err != nil || !maps.Equal(got, in) {
		t.Errorf("Parse = %v, %v", got, err)
	}
	if got, err := pool.Parse(nil); err != nil || len(got) != 0 {
		t.Errorf("Parse(nil) = %v, %v", got, err)
	}
	for name, flags := range map[string]map[string]string{
		"capitals":       {strings.ToUpper(id): "/srv/a"},
		"no UUID":        {"fast": "/srv/a"},
		"UUID and more":  {id + "\n": "/srv/a"},
		"empty name":     {"": "/srv/a"},
		"relative":       {id: "srv/a"},
		"empty":          {id: ""},
		"not clean":      {id: "/srv/../etc"},
		"slash at end":   {id: "/srv/a/"},
		"the root":       {id: "/"},
		"NUL":            {id: "/srv\x00"},
		"twice the same": {id: "/srv/a", other: "/srv/a"},
	} {
		if got, err := pool.Parse(flags); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: Parse = %v, %v; want %v", name, got, err, errs.Invalid)
		}
	}
}

// newPool has one file of each type, and a file outside.
func newPool(t *testing.T) (pools pool.Pools, dir string) {
	t.Helper()
	outer := t.TempDir()
	dir = filepath.Join(outer, "pool")
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "sub", "deep"), 0o755))
	for _, f := range []string{"../outside", "file", "sub/file", "sub/deep/file"} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, f), []byte(f), 0o600))
	}
	for link, to := range map[string]string{
		"link": "file", "dirlink": "sub", "out": "../outside", "absolute": filepath.Join(outer, "outside"), "up": "..", "loop": "loop", "proc": "/proc/self/root",
	} {
		testkit.Must(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	testkit.Must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	testkit.Must(t, unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	testkit.Must(t, unix.Mknod(filepath.Join(dir, "block"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))))
	return pool.Pools{id: dir}, dir
}

func TestFile(t *testing.T) {
	pools, dir := newPool(t)
	for _, name := range []string{"file", "sub/file", "sub/deep/file", "block"} {
		got, err := pools.File(access.File{Pool: id, Name: name})
		if want := filepath.Join(dir, name); err != nil || got != want {
			t.Errorf("File(%s) = %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestDirectory(t *testing.T) {
	pools, dir := newPool(t)
	for _, name := range []string{"sub", "sub/deep"} {
		d, err := pools.Directory(access.File{Pool: id, Name: name})
		if err != nil {
			t.Errorf("Directory(%s): %v", name, err)
			continue
		}
		// The handle keeps referring to the directory after it was replaced.
		testkit.Must(t, os.Rename(filepath.Join(dir, name), filepath.Join(dir, "moved")))
		testkit.Must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		var st, want unix.Stat_t
		testkit.Must(t, unix.Fstat(int(d.Fd()), &st))
		testkit.Must(t, unix.Stat(filepath.Join(dir, "moved"), &want))
		if st.Ino != want.Ino {
			t.Errorf("Directory(%s) is another directory now", name)
		}
		testkit.Must(t, os.Remove(filepath.Join(dir, name)))
		testkit.Must(t, os.Rename(filepath.Join(dir, "moved"), filepath.Join(dir, name)))
		testkit.Must(t, d.Close())
	}
}

func TestRefuses(t *testing.T) {
	pools, dir := newPool(t)
	pools[other] = filepath.Join(dir, "absent")
	both := []struct {
		pool, name, says string
		kind             errs.Kind
	}{
		{id, "link", "symbolic link", errs.Precondition},
		{id, "dirlink/file", "symbolic link", errs.Precondition},
		{id, "dirlink/deep", "symbolic link", errs.Precondition},
		{id, "out", "symbolic link", errs.Precondition},
		{id, "absolute", "symbolic link", errs.Precondition},
		{id, "up/outside", "symbolic link", errs.Precondition},
		{id, "loop", "symbolic link", errs.Precondition},
		{id, "proc/etc", "symbolic link", errs.Precondition},
		{id, "gone", "must exist", errs.Precondition},
		{id, "file/below", "not a directory", errs.Precondition},
		{other, "file", "absent", errs.Precondition},
		{"0198a6b2-7c1e-7b5e-9d0a-000000000000", "file", "known pools", errs.Precondition},
		{id, "", "clean path", errs.Invalid},
		{id, ".", "clean path", errs.Invalid},
		{id, "..", "clean path", errs.Invalid},
		{id, "../outside", "clean path", errs.Invalid},
		{id, "sub/../../outside", "clean path", errs.Invalid},
		{id, "/etc/passwd", "clean path", errs.Invalid},
		{id, "sub//file", "clean path", errs.Invalid},
		{id, "file\x00", "clean path", errs.Invalid},
	}
	check := func(t *testing.T, err error, kind errs.Kind, says string) {
		t.Helper()
		if errs.KindOf(err) != kind || err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v (%v), want %v that says %q", err, errs.KindOf(err), kind, says)
		}
	}
	for _, c := range both {
		t.Run(c.name, func(t *testing.T) {
			f := access.File{Pool: c.pool, Name: c.name}
			path, err := pools.File(f)
			check(t, err, c.kind, c.says)
			d, err2 := pools.Directory(f)
			check(t, err2, c.kind, c.says)
			if path != "" || d != nil {
				t.Errorf("an answer beside the error: %q, %v", path, d)
			}
		})
	}
	for name, says := range map[string]string{"sub": "is a directory", "pipe": "is a pipe", "null": "is a character device"} {
		_, err := pools.File(access.File{Pool: id, Name: name})
		check(t, err, errs.Precondition, says)
	}
	for _, name := range []string{"file", "block", "pipe"} {
		_, err := pools.Directory(access.File{Pool: id, Name: name})
		check(t, err, errs.Precondition, "a file system volume needs a directory")
	}
}

// TestNames: no name leads out of the pool.
func TestNames(t *testing.T) {
	pools, dir := newPool(t)
	elements := []string{"file", "sub", "deep", "..", ".", "", "link", "dirlink", "up", "out", "outside", "proc", "self", "root", "/"}
	rapid.Check(t, func(t *rapid.T) {
		name := strings.Join(rapid.SliceOfN(rapid.SampledFrom(elements), 1, 6).Draw(t, "elements"), "/")
		path, err := pools.File(access.File{Pool: id, Name: name})
		if err != nil {
			return
		}
		real, err := filepath.EvalSymlinks(path)
		if err != nil || real != path || !strings.HasPrefix(path, dir+"/") {
			t.Fatalf("File(%q) = %q, which is %q (%v)", name, path, real, err)
		}
	})
}

// TestSwapped: a directory that is repeatedly replaced by a link is never
// followed out of the pool.
func TestSwapped(t *testing.T) {
	pools, dir := newPool(t)
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "..", "elsewhere"), 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "..", "elsewhere", "file"), nil, 0o600))
	testkit.Must(t, os.Symlink("../elsewhere", filepath.Join(dir, "trap")))
	var inside unix.Stat_t
	testkit.Must(t, unix.Stat(filepath.Join(dir, "sub/deep"), &inside))
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "..", "elsewhere", "deep"), 0o755))
	stop := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "sub"), unix.AT_FDCWD, filepath.Join(dir, "trap"), unix.RENAME_EXCHANGE)
			}
		}
	})
	defer swapper.Wait()
	defer close(stop)
	opened := 0
	for range 2000 {
		d, err := pools.Directory(access.File{Pool: id, Name: "sub/deep"})
		if err != nil {
			continue
		}
		opened++
		var st unix.Stat_t
		if err := unix.Fstat(int(d.Fd()), &st); err != nil || st.Ino != inside.Ino {
			t.Errorf("a link was followed out of the pool (%v)", err)
		}
		testkit.Must(t, d.Close())
	}
	t.Logf("%d of 2000 lookups met the directory", opened)
}
